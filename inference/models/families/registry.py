"""Every family that runs here. A new one is a ``Family``: in ``llama.py`` where only its config
differs from llama's, in ``mixtures.py`` where its MLPs are experts besides, in ``other_norms.py``
where its norms are others or elsewhere; else in a file of its own, and a line here."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from inference.models.config import ModelConfig
from inference.models.families import (
    deepseek,
    gemma,
    hunyuan,
    lfm2,
    llama,
    llama4,
    mamba,
    mixtures,
    other_norms,
    qwen,
)
from inference.models.families.family import Family
from inference.models.families.transformers_modules import (
    MODULES,
    TRANSFORMERS_CACHED,
    TRANSFORMERS_PAGED,
)
from inference.models.families.transformers_types import REFUSED_TYPES
from inference.protocol.load_errors import UnknownArchitectureError

NUM_NEAREST = 2
LEAST_LIKENESS = 0.7
MODELS_PAGE = "docs/models.md"

FAMILIES: tuple[Family, ...] = (
    *llama.FAMILIES,
    *mixtures.FAMILIES,
    *qwen.FAMILIES,
    *gemma.FAMILIES,
    *mamba.FAMILIES,
    *other_norms.FAMILIES,
    *hunyuan.FAMILIES,
    *lfm2.FAMILIES,
    *deepseek.FAMILIES,
    *llama4.FAMILIES,
)

_OWN = {kind: family for family in FAMILIES for kind in family.model_types}
_TRANSFORMERS = {
    kind: family
    for family in (TRANSFORMERS_PAGED, TRANSFORMERS_CACHED)
    for kind in family.model_types
}
_BY_MODEL_TYPE = _TRANSFORMERS | _OWN
_GGUF_MODULES = {name: _BY_MODEL_TYPE[kind] for name, kind in MODULES.items()}
_BY_GGUF = {
    name: family for family in FAMILIES for name in family.gguf_architectures
} | _GGUF_MODULES


def find_family(model_type: str) -> Family | None:
    return _BY_MODEL_TYPE.get(model_type)


def family_of(config: ModelConfig) -> Family:
    return _BY_MODEL_TYPE[config.architecture]


def known_model_types() -> tuple[str, ...]:
    return tuple(_BY_MODEL_TYPE)


def check_architecture(model_type: str) -> Family:
    """Raises ``UnknownArchitectureError``."""
    family = _BY_MODEL_TYPE.get(model_type)
    if family is None:
        raise unknown_architecture(model_type, _BY_MODEL_TYPE)
    return family


def check_gguf_architecture(architecture: str) -> Family:
    """Raises ``UnknownArchitectureError``."""
    family = _BY_GGUF.get(architecture)
    if family is None:
        raise unknown_architecture(architecture, _BY_GGUF)
    return family


def may_read_images(gguf_architecture: str | None) -> bool:
    """Whether an mmproj file may be of use; ``None``: the architecture is not known."""
    family = None if gguf_architecture is None else _BY_GGUF.get(gguf_architecture)
    return family is None or bool(family.gguf_projectors)


def unknown_architecture(architecture: str, known: Iterable[str]) -> UnknownArchitectureError:
    reason = REFUSED_TYPES.get(architecture)
    refused = "" if reason is None else f", which {reason}"
    return UnknownArchitectureError(
        f"the model's architecture is {architecture!r}{refused}; this build does not run it. "
        f"{nearest_words(architecture, known)}"
    )


def nearest_words(architecture: str, known: Iterable[str]) -> str:
    """A likeness of a few letters is none: nothing is named then."""
    near = get_close_matches(architecture, sorted(known), n=NUM_NEAREST, cutoff=LEAST_LIKENESS)
    spelt = f"It runs {' and '.join(near)}, which are spelt nearly so; " if near else ""
    return f"{spelt}{MODELS_PAGE} lists all that it runs"
