"""One expert's projection of random numbers, in each format that a file may hold."""

from __future__ import annotations

import torch

from inference.models.weights.stored import (
    TWICE_THE_MXFP4_VALUES,
    Codebook,
    CodebookWeight,
    DenseWeight,
    ExpertWeight,
    Fp8Weight,
    GroupedWeight,
    SuperBlockWeight,
)

KINDS = ["dense", "fp8", "MXFP4", "Q4", "Q5", "Q5 with minimums", "Q8"]
K_KINDS = [f"Q{bits}_K" for bits in (2, 3, 4, 5, 6)]
TABLE_KINDS = ["IQ4_XS", "IQ2_S", "TQ2_0", "NVFP4"]
OUT_FEATURES, IN_FEATURES = 37, 512


def random_expert(kind: str, seed: int, in_features: int = IN_FEATURES) -> ExpertWeight:
    generator = torch.Generator().manual_seed(seed)
    shape = OUT_FEATURES, in_features

    def codes(low: int, high: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator).to(dtype)

    def uniform(*size: int) -> torch.Tensor:
        return torch.rand(size, generator=generator)

    groups = OUT_FEATURES, in_features // 32
    if kind == "dense":
        return DenseWeight(weight=uniform(*shape) - 0.5)
    if kind == "fp8":
        numbers = (uniform(*shape) - 0.5) * 800
        scales = uniform(-(-OUT_FEATURES // 16), -(-in_features // 128)) + 0.1
        return Fp8Weight(
            codes=numbers.to(torch.float8_e4m3fn), scales=scales / 400, block_shape=(16, 128)
        )
    if kind == "MXFP4":
        numbers = torch.tensor(TWICE_THE_MXFP4_VALUES, dtype=torch.int8)
        exponents = torch.randint(-6, 3, groups, generator=generator)
        return GroupedWeight(
            bits=8,
            codes=numbers[codes(0, 16, torch.int64)],
            scales=torch.exp2(exponents.float()) / 16,
        )
    if kind in TABLE_KINDS:
        return random_codebook(kind, seed, shape)
    bits = int(kind[1])
    if kind.endswith("K"):
        group = 32 if bits in (4, 5) else 16
        sizes, blocks = (OUT_FEATURES, in_features // group), (OUT_FEATURES, in_features // 256)
        has_minimums = bits in (2, 4, 5)

        def small() -> torch.Tensor:
            return torch.randint(-32, 64, sizes, generator=generator).to(torch.int8)

        return SuperBlockWeight(
            bits=bits,
            codes=codes(0, 2**bits, torch.uint8),
            scales=small(),
            super_scales=(uniform(*blocks) / 2**bits / 32).half(),
            minimums=small() if has_minimums else None,
            super_minimums=-(uniform(*blocks) / 32).half() if has_minimums else None,
        )
    is_signed = kind in ("Q5", "Q6", "Q8")
    low = -(2 ** (bits - 1)) if is_signed else 0
    return GroupedWeight(
        bits=bits,
        codes=codes(low, low + 2**bits, torch.int8 if is_signed else torch.uint8),
        scales=(uniform(*groups) / 2**bits).half(),
        minimums=None if is_signed else (-uniform(*groups)).half(),
    )


IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
CODEBOOKS = {
    "IQ4_XS": (Codebook(IQ4_VALUES), 32),
    "IQ2_S": (Codebook((-43, -25, -8, 0, 8, 25, 43, 127), 1 / 8), 16),
    "TQ2_0": (Codebook((-1, 0, 1, 2)), 32),
    "NVFP4": (Codebook(TWICE_THE_MXFP4_VALUES, 0.0137), 16),
}
"""Tables of 16, 8 and 4 values, and one whose unit is no power of two; features of a group."""


def random_codebook(kind: str, seed: int, shape: tuple[int, int]) -> CodebookWeight:
    """Scales with those of blocks above them, or without."""
    codebook, group_features = CODEBOOKS[kind]
    generator = torch.Generator().manual_seed(seed)
    groups, blocks = (shape[0], shape[1] // group_features), (shape[0], shape[1] // 256)
    codes = torch.randint(0, len(codebook.values), shape, generator=generator).to(torch.uint8)
    if kind in ("TQ2_0", "NVFP4"):
        scales = torch.rand(groups, generator=generator).half()
        return CodebookWeight(codebook=codebook, codes=codes, scales=scales)
    return CodebookWeight(
        codebook=codebook,
        codes=codes,
        scales=torch.randint(-32, 32, groups, generator=generator).to(torch.int8),
        super_scales=(torch.rand(blocks, generator=generator) / 32).half(),
    )
