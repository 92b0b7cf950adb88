"""The original's names of what dense weights are quantised to while they load. Pure.

There `q4k` and `q4_0` are two layouts of four bits. Here a number of bits has one layout; two and
three bits become four, which is more memory and no larger error.
"""

from __future__ import annotations

from inference.protocol.load import Quantization

QUANTIZATION_OF_BITS: dict[int, Quantization] = {
    2: "q4",
    3: "q4",
    4: "q4",
    5: "q5",
    6: "q6",
    8: "q8",
}
LAYOUTS = ("k", "_k", "_0", "_1")
QUANTIZATION_OF_NAME: dict[str, Quantization] = {
    f"q{bits}{layout}": quantization
    for bits, quantization in QUANTIZATION_OF_BITS.items()
    for layout in LAYOUTS
}
"""Keys are names in lower case: `q4k`, `q5_1`, `q8_0`."""
