"""The model files that benchmarks know by name: published ones are fetched, shapes made of random
weights."""

from __future__ import annotations

from pathlib import Path

from benchmarks.weights.gemma_file import fetch_gemma
from benchmarks.weights.random_gguf import SHAPES, random_file
from helexa_site.bootstrap.suite import MODEL_CACHE_DIR, fetch_default_model

SMOLLM2, GEMMA = "smollm2", "gemma-3-270m"
FETCHED = (SMOLLM2, GEMMA)
KNOWN = (*FETCHED, *SHAPES)


def model_file(name: str, data_dir: Path) -> Path:
    """``name`` of ``KNOWN``. Files of random weights are kept in ``data_dir``, published ones where
    the tests have them. Raises ``LoadError``."""
    if name == SMOLLM2:
        return fetch_default_model()
    return fetch_gemma(MODEL_CACHE_DIR) if name == GEMMA else random_file(name, data_dir)
