"""One expert's projection of random numbers, in each format that a file may hold."""

from __future__ import annotations

import torch

from inference.models.native.packing import Format
from inference.models.stored_weights import (
    TWICE_THE_MXFP4_VALUES,
    DenseWeight,
    ExpertWeight,
    Fp8Weight,
    GroupedWeight,
)
from tests.inference.models.stored_weights import stored_as

KINDS = ["dense", "fp8", "MXFP4", "Q4", "Q5", "Q5 with minimums", "Q8"]
K_KINDS = [f"Q{bits}_K" for bits in (2, 3, 4, 5, 6)]
TABLE_KINDS = ["IQ4_XS", "IQ2_S", "TQ2_0", "NVFP4"]
FORMATS = {
    "Q5": Format.Q5_0,
    "Q5 with minimums": Format.Q5_1,
    "IQ4_XS": Format.T4K,
    "IQ2_S": Format.T3K,
    "TQ2_0": Format.T2,
    "NVFP4": Format.T4H,
}
OUT_FEATURES, IN_FEATURES = 37, 512


def random_expert(kind: str, seed: int, in_features: int = IN_FEATURES) -> ExpertWeight:
    generator = torch.Generator().manual_seed(seed)
    shape = OUT_FEATURES, in_features
    if kind == "dense":
        return DenseWeight(weight=torch.rand(shape, generator=generator) - 0.5)
    if kind == "fp8":
        numbers = (torch.rand(shape, generator=generator) - 0.5) * 800
        blocks = -(-OUT_FEATURES // 16), -(-in_features // 128)
        scales = (torch.rand(blocks, generator=generator) + 0.1) / 400
        codes = numbers.to(torch.float8_e4m3fn)
        return Fp8Weight(codes=codes, scales=scales, block_shape=(16, 128))
    if kind == "MXFP4":
        values = torch.tensor(TWICE_THE_MXFP4_VALUES, dtype=torch.int8)
        groups = OUT_FEATURES, in_features // 32
        exponents = torch.randint(-6, 3, groups, generator=generator)
        return GroupedWeight(
            bits=8,
            codes=values[torch.randint(0, 16, shape, generator=generator)],
            scales=torch.exp2(exponents.float()) / 16,
        )
    return stored_as(FORMATS.get(kind) or Format[kind], *shape, seed)
