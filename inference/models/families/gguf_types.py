"""GGUF's tensor types that are read here, by name, and what a weight of each takes. Imports nothing
of the gguf package: a page and a gateway list them as well."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GGUFType:
    name: str
    cpu_bits: float | None
    """The bits of a weight as the native decoder packs it, scales included; ``None``: float32."""
    is_table: bool = False
    """Whether its codes are looked up in a table of values."""


GGUF_TYPES = (
    GGUFType("F32", None),
    GGUFType("F16", None),
    GGUFType("BF16", None),
    GGUFType("Q4_0", 5),
    GGUFType("Q4_1", 5),
    GGUFType("Q5_0", 5.5),
    GGUFType("Q5_1", 6),
    GGUFType("Q8_0", 8.5),
    GGUFType("Q2_K", 3.125),
    GGUFType("Q3_K", 3.5625),
    GGUFType("Q4_K", 4.625),
    GGUFType("Q5_K", 5.625),
    GGUFType("Q6_K", 6.5625),
    GGUFType("IQ1_S", 3.5625, is_table=True),
    GGUFType("IQ1_M", 3.5625, is_table=True),
    GGUFType("IQ2_XXS", 3.5625, is_table=True),
    GGUFType("IQ2_XS", 3.5625, is_table=True),
    GGUFType("IQ2_S", 3.5625, is_table=True),
    GGUFType("IQ3_XXS", 4.3125, is_table=True),
    GGUFType("IQ3_S", 4.3125, is_table=True),
    GGUFType("IQ4_NL", 4.5, is_table=True),
    GGUFType("IQ4_XS", 4.3125, is_table=True),
    GGUFType("TQ1_0", 2.5, is_table=True),
    GGUFType("TQ2_0", 2.5, is_table=True),
    GGUFType("Q1_0", 2.5, is_table=True),
    GGUFType("MXFP4", 4.5),
    GGUFType("NVFP4", 5, is_table=True),
)
