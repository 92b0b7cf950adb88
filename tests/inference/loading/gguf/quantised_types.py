"""GGUF's types whose numbers are codes."""

from __future__ import annotations

from gguf.constants import GGMLQuantizationType

from inference.models.families.gguf_types import GGUF_TYPES

QUANTISED_TYPES = frozenset(
    GGMLQuantizationType[type.name] for type in GGUF_TYPES if type.cpu_bits is not None
)
