"""Random weights in GGUF's quantised types, most of which the gguf package cannot make."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from inference.loading.gguf import quants
from inference.models.stored_weights import DenseWeight

Bytes = npt.NDArray[np.uint8]

SCALE_FIELDS = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "Q1_0", "IQ4_NL", "IQ4_XS"), (0, 2)),
    **dict.fromkeys(("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), (0, 2)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 4)),
    "Q2_K": (80, 84),
    "Q3_K": (108, 110),
    "Q6_K": (208, 210),
    "TQ1_0": (52, 54),
    "TQ2_0": (64, 66),
}
"""Offsets of the float16 scales in a block. Its other bytes may be anything."""
SAMPLE_ROWS = 64


def random_blocks(
    generator: np.random.Generator,
    type: GGMLQuantizationType,
    dimensions: tuple[int, ...],
    value_size: float,
) -> Bytes:
    """Any codes, and scales that keep the root mean square of the values at about ``value_size``.
    ``dimensions``: the features that a product reads last. Returns (..., bytes of a row)."""
    block_features, block_bytes = GGML_QUANT_SIZES[type]
    *outer, features = dimensions
    num_rows, num_blocks = int(np.prod(outer)), features // block_features
    blocks = generator.integers(0, 256, (num_rows, num_blocks, block_bytes), dtype=np.uint8)
    if type.name == "NVFP4":
        blocks[:, :, :4] &= 0x0F  # up to 2**-6, in numbers of up to 6
    elif type.name == "MXFP4":
        blocks[:, :, 0] = 118 + (blocks[:, :, 0] & 3)  # 2**-9 to 2**-6
    else:
        first, last = SCALE_FIELDS.get(type.name, (0, 2))
        scales = generator.uniform(0.5, 1.5, (num_rows, num_blocks, (last - first) // 2))
        _set_scales(blocks, type, scales)
        sample = quants.stored(blocks[:SAMPLE_ROWS].reshape(-1, num_blocks * block_bytes), type)
        assert not isinstance(sample, DenseWeight)
        scales *= value_size / float(sample.dequantize().square().mean().sqrt())
        _set_scales(blocks, type, scales)
    return blocks.reshape(*outer, -1)


def _set_scales(blocks: Bytes, type: GGMLQuantizationType, scales: npt.NDArray[np.float64]) -> None:
    halves = scales.astype(np.float16)
    if type.name == "IQ1_M":  # four bits of it on top of each of four words
        words = blocks[:, :, 48:].view(np.uint16)
        words &= 0x0FFF
        words |= halves.view(np.uint16) >> np.array([0, 4, 8, 12], np.uint16) << 12
        return
    first, last = SCALE_FIELDS[type.name]
    blocks[:, :, first:last] = halves.view(np.uint8)
