"""Weights of random codes, in each format that is kept packed."""

from __future__ import annotations

import torch

from inference.models.native.packing import (
    CODEBOOK_FORMATS,
    GROUPED_FORMATS,
    SUPER_BLOCK_FORMATS,
    Format,
)
from inference.models.stored_weights import (
    TWICE_THE_MXFP4_VALUES,
    Codebook,
    CodebookWeight,
    DenseWeight,
    ExpertWeight,
    Fp8Weight,
    GroupedWeight,
    PackedWeight,
    SuperBlockWeight,
)


def stored_as(format: Format, out_features: int, in_features: int, seed: int) -> PackedWeight:
    """``format``: of codes. The weight's numbers are as large in every format."""
    generator = torch.Generator().manual_seed(seed)
    if format in SUPER_BLOCK_FORMATS.values():
        return _super_blocks(format, out_features, in_features, generator)
    if format in CODEBOOKS:
        return _codebook(format, out_features, in_features, generator)
    return _groups(format, out_features, in_features, generator)


CODEBOOKS = {
    Format.T2: Codebook((-8, 0, 2, 7)),
    Format.T4: Codebook((-127, *range(-100, 96, 15), 127)),
    Format.T4H: Codebook(tuple(range(-16, 16, 2)), 0.0137),
    Format.T3K: Codebook((-48, -25, -8, 0, 1, 9, 30, 48), 0.125),
    Format.T4K: Codebook((-127, *range(-100, 96, 15), 127), 0.25),
}
"""Values as large as the formats take them, and a unit that is no power of two."""


def _codebook(
    format: Format, out_features: int, in_features: int, generator: torch.Generator
) -> CodebookWeight:
    bits, group, has_supers = next(k for k, value in CODEBOOK_FORMATS.items() if value is format)
    codebook, shape = CODEBOOKS[format], (out_features, in_features)
    size = 0.1 / max(codebook.values) / codebook.unit
    scales = torch.rand(out_features, in_features // group, generator=generator) + 0.5
    supers = None
    if has_supers:
        scales = torch.randint(-32, 32, scales.shape, generator=generator, dtype=torch.int8)
        supers = torch.rand(out_features, in_features // 256, generator=generator) + 0.5
        supers = (supers * size / 16).half()
    return CodebookWeight(
        codebook=codebook,
        codes=torch.randint(0, 2**bits, shape, generator=generator, dtype=torch.uint8),
        scales=scales if has_supers else (scales * size).half(),
        super_scales=supers,
    )


def _groups(
    format: Format, out_features: int, in_features: int, generator: torch.Generator
) -> GroupedWeight:
    bits, has_minimums = next(key for key, value in GROUPED_FORMATS.items() if value is format)
    lowest = 0 if has_minimums else -(2 ** (bits - 1))
    shape, dtype = (out_features, in_features), torch.uint8 if has_minimums else torch.int8
    codes = torch.randint(lowest, lowest + 2**bits, shape, generator=generator, dtype=dtype)
    scales = (torch.rand(out_features, in_features // 32, generator=generator) + 0.5) / 2**bits
    minimums = (-(2.0 ** (bits - 1)) * scales * 0.3).half() if has_minimums else None
    return GroupedWeight(bits=bits, codes=codes, scales=(0.3 * scales).half(), minimums=minimums)


def _super_blocks(
    format: Format, out_features: int, in_features: int, generator: torch.Generator
) -> SuperBlockWeight:
    bits = next(key for key, value in SUPER_BLOCK_FORMATS.items() if value is format)
    has_minimums = bits in (2, 4, 5)
    groups = (out_features, in_features // (32 if bits in (4, 5) else 16))
    lowest = {2: 0, 3: -32, 4: 0, 5: 0, 6: -128}[bits]
    highest = {2: 15, 3: 31, 4: 63, 5: 63, 6: 127}[bits]

    def small() -> torch.Tensor:
        return torch.randint(lowest, highest + 1, groups, generator=generator, dtype=torch.int8)

    supers = torch.rand(out_features, in_features // 256, generator=generator) + 0.5
    scales = 0.3 * supers / highest / 2**bits
    return SuperBlockWeight(
        bits=bits,
        codes=torch.randint(
            0, 2**bits, (out_features, in_features), generator=generator, dtype=torch.uint8
        ),
        scales=small(),
        super_scales=scales.half(),
        minimums=small() if has_minimums else None,
        super_minimums=(-(2.0 ** (bits - 1)) * scales).half() if has_minimums else None,
    )


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
    """One expert's projection, in each format that a file may hold."""
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
        codes = values[torch.randint(0, 16, shape, generator=generator)]
        exponents = torch.randint(-6, 3, (OUT_FEATURES, in_features // 32), generator=generator)
        return GroupedWeight(bits=8, codes=codes, scales=torch.exp2(exponents.float()) / 16)
    return stored_as(FORMATS.get(kind) or Format[kind], *shape, seed)
