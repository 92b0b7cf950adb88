"""The formats of weights: of files, and (in small letters) those that dense matrices are quantised
to while they load. Imports nothing."""

from __future__ import annotations

from typing import Literal, NamedTuple

InSitu = Literal["q4", "q5", "q6", "q8", "fp8"]


class Format(NamedTuple):
    name: str
    native: float | None = None
    """Bits as the native decoder packs it, scales included: ``native/cpp/formats.h``. ``None``:
    dense, as everywhere here."""
    card: float | None = None
    """Bits as a card's own kernels keep experts and projections, ``models/cuda/packed.py`` and
    ``experts.py``. Places in a table take four bits, with a scale for each 32 or 16."""
    torch: float | None = None
    """Bits in torch's kernels, which take codes of 5 and 6 bits as 8, with two 2-byte numbers for
    each 32."""
    same: InSitu | None = None
    """The in-situ format of as many bits."""


GGUF_FORMATS = (
    Format("F32"),
    Format("F16"),
    Format("BF16"),
    Format("Q4_0", 5, 5, 5, "q4"),
    Format("Q4_1", 5, 5, 5, "q4"),
    Format("Q5_0", 5.5, 6.5, 9, "q5"),
    Format("Q5_1", 6, 7, None, "q5"),
    Format("Q8_0", 8.5, 8.5, 9, "q8"),
    Format("Q2_K", 3.125, 6),
    Format("Q3_K", 3.5625, 5),
    Format("Q4_K", 4.625, 5, 5, "q4"),
    Format("Q5_K", 5.625, 7, None, "q5"),
    Format("Q6_K", 6.5625, 7, None, "q6"),
    Format("IQ1_S", 3.5625, 5),
    Format("IQ1_M", 3.5625, 5),
    Format("IQ2_XXS", 3.5625, 5),
    Format("IQ2_XS", 3.5625, 5),
    Format("IQ2_S", 3.5625, 5),
    Format("IQ3_XXS", 4.3125, 4.5),
    Format("IQ3_S", 4.3125, 4.5),
    Format("IQ4_NL", 4.5, 4.5, None, "q4"),
    Format("IQ4_XS", 4.3125, 4.5, None, "q4"),
    Format("TQ1_0", 2.5, 4.5),
    Format("TQ2_0", 2.5, 4.5),
    Format("Q1_0", 2.5, 4.5),
    Format("MXFP4", 4.5, 4.5, 9),
    Format("NVFP4", 5, 5),
)
FP8_FILES, INT4, INT8, MXFP4 = "F8_E4M3", "INT4", "INT8", "MXFP4"
FORMATS = {
    format.name: format
    for format in (
        *GGUF_FORMATS,
        Format(FP8_FILES, card=8.5),
        Format(INT4, 5, 5, 5, "q4"),
        Format(INT8, 8.5, 8.5, 9, "q8"),
        Format("q4", 5, 5, 5),
        Format("q5", 5.5, 6.5, 9),
        Format("q6", 6.5, 6.5, 9),
        Format("q8", 8.5, 8.5, 9),
        Format("fp8", 8, None, 8),
    )
}
DENSE = Format("dense")
DENSE_FORMATS = frozenset({"F32", "F16", "BF16", FP8_FILES})
"""fp8 is multiplied out as it is read, which leaves a dense weight."""


def format_of(name: str) -> Format:
    """``DENSE`` for what is kept in the dtype of activations."""
    return FORMATS.get(name, DENSE)
