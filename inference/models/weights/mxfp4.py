"""Codes of MXFP4 (OCP Microscaling Formats 1.0) among weights of 8 bits, which hold twice its
numbers: half the memory where a kernel looks them up in a table."""

from __future__ import annotations

import torch

from inference.models.weights.codebook import Codebook, CodebookWeight
from inference.models.weights.stored import TWICE_THE_MXFP4_VALUES, GroupedWeight

MXFP4 = Codebook(TWICE_THE_MXFP4_VALUES)
NO_CODE = 255


def codes_of(numbers: torch.Tensor) -> torch.Tensor:
    """Returns int8 numbers as uint8 codes of four bits; ``NO_CODE`` where a number is not twice one
    of MXFP4."""
    return _CODES.to(numbers.device)[numbers.to(torch.int64) + 128]


def in_four_bits(weight: GroupedWeight) -> CodebookWeight:
    """The same values. ``weight``: read from MXFP4."""
    assert weight.is_mxfp4
    return CodebookWeight(
        codebook=MXFP4, codes=codes_of(weight.codes), scales=weight.scales, bias=weight.bias
    )


def _codes() -> torch.Tensor:
    found = torch.full((256,), NO_CODE, dtype=torch.uint8)
    # From the last: nothing is the first of its two codes.
    for code in range(len(TWICE_THE_MXFP4_VALUES) - 1, -1, -1):
        found[TWICE_THE_MXFP4_VALUES[code] + 128] = code
    return found


_CODES = _codes()
