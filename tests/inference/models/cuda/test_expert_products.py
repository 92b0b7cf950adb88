"""Rows sorted by expert times their experts' weights, in every format that a file may hold."""

from __future__ import annotations

import pytest
import torch

from inference.models.cuda.experts import (
    UnlikeExpertsError,
    chosen_tile_rows,
    most_tiles,
    mxfp4_codes,
    stacked_product,
)
from inference.models.cuda.packed import TILES
from inference.models.cuda.packed_layout import pack_scales
from inference.models.weights.stored import (
    TWICE_THE_MXFP4_VALUES,
    DenseWeight,
    ExpertWeight,
    GroupedWeight,
)
from inference.models.weights.weight_source import DenseProduct
from tests.cases import each_case
from tests.inference.models.cuda.random_experts import (
    IN_FEATURES,
    K_KINDS,
    KINDS,
    OUT_FEATURES,
    TABLE_KINDS,
    random_expert,
)
from tests.slow_cases import slow_but

pytestmark = pytest.mark.slow

NUM_EXPERTS = 4
RAGGED = [3, 0, 1, 40]
"""Entries of each expert."""


def whole(weight: ExpertWeight) -> torch.Tensor:
    return weight.weight if isinstance(weight, DenseWeight) else weight.dequantize()


def check(
    device: torch.device,
    kind: str,
    counts: list[int],
    *,
    in_features: int = IN_FEATURES,
    gathers: bool = True,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Compares with torch's grouped product over the same weights written out."""
    experts = [random_expert(kind, seed, in_features) for seed in range(len(counts))]
    generator = torch.Generator().manual_seed(9)
    num_entries = sum(counts)
    x = torch.randn(num_entries, in_features, generator=generator).to(dtype)
    rows = torch.randint(0, num_entries, (num_entries,), generator=generator) if gathers else None
    ends = torch.tensor(counts).cumsum(0).to(torch.int32)
    dense = DenseProduct(torch.stack([whole(weight) for weight in experts]))
    wanted = dense(x.float(), ends, rows)
    product = stacked_product(experts.__getitem__, len(experts), device, dtype)
    found = product(x.to(device), ends.to(device), None if rows is None else rows.to(device))
    assert found.dtype == dtype
    error = float((found.cpu().float() - wanted).abs().max() / wanted.abs().max())
    rounds_scales = kind == "fp8" or kind.endswith("K") or kind in TABLE_KINDS
    assert error < (0.02 if dtype != torch.float32 else 2**-11 if rounds_scales else 1e-5)


@pytest.mark.parametrize(
    "kind", slow_but([*KINDS, *K_KINDS, *TABLE_KINDS], "dense", "Q4", "Q6_K", "IQ4_XS")
)
def test_every_format_multiplies_as_its_dequantised_weight(device: torch.device, kind: str) -> None:
    check(device, kind, RAGGED)


@each_case("counts", [[0, 0, 0, 5], [1, 1, 1, 1], [0, 9, 0, 0], [17, 16, 0, 33]])
@each_case("kind", ["dense", "MXFP4"])
def test_experts_with_few_rows_many_and_none(
    device: torch.device, kind: str, counts: list[int]
) -> None:
    check(device, kind, counts, gathers=False)


@pytest.mark.parametrize("kind", ["dense", "MXFP4", "Q5", "Q8", "fp8"])
def test_features_that_do_not_fill_a_step(device: torch.device, kind: str) -> None:
    check(device, kind, [2, 3], in_features=96)


@pytest.mark.parametrize("kind", ["dense", "Q6_K"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_activations(device: torch.device, kind: str, dtype: torch.dtype) -> None:
    check(device, kind, [2, 3], dtype=dtype)


def test_entries_beyond_the_last_expert_are_left_alone(device: torch.device) -> None:
    experts = [random_expert("Q8", seed) for seed in range(2)]
    product = stacked_product(experts.__getitem__, 2, device, torch.float32)
    x = torch.randn(5, IN_FEATURES, generator=torch.Generator().manual_seed(1)).to(device)
    some = product(x, torch.tensor([1, 3], dtype=torch.int32, device=device))
    alone = product(x[:3], torch.tensor([1, 3], dtype=torch.int32, device=device))
    assert torch.equal(some[:3], alone)


def test_the_grid_has_room_for_any_distribution() -> None:
    for num_entries in (1, 5, 16, 33, 200):
        tile_rows = chosen_tile_rows(TILES, num_entries, NUM_EXPERTS)
        most = most_tiles(num_entries, NUM_EXPERTS, tile_rows)
        for first in range(num_entries + 1):
            for second in range(num_entries - first + 1):
                counts = [first, second, 0, num_entries - first - second]
                assert sum(-(-count // tile_rows) for count in counts) <= most


def test_mxfp4_takes_four_bits_and_other_codes_eight(device: torch.device) -> None:
    weight = random_expert("MXFP4", 0)
    assert isinstance(weight, GroupedWeight)
    codes = mxfp4_codes(weight)
    assert codes is not None
    values = torch.tensor(TWICE_THE_MXFP4_VALUES, dtype=torch.int8)
    assert torch.equal(values[codes.long()], weight.codes)
    product = stacked_product(lambda _: weight, 2, device, torch.float32)
    assert product.packed.words.nbytes == 2 * OUT_FEATURES * IN_FEATURES // 2
    other = random_expert("Q8", 0)
    assert isinstance(other, GroupedWeight)
    assert mxfp4_codes(other) is None


def test_experts_that_are_not_stored_alike_are_refused(device: torch.device) -> None:
    experts = [random_expert("Q4", 0), random_expert("Q8", 1)]
    with pytest.raises(UnlikeExpertsError, match="expert 1"):
        stacked_product(experts.__getitem__, 2, device, torch.float32)
    tables = [random_expert(kind, 0) for kind in ("IQ2_S", "NVFP4")]
    with pytest.raises(UnlikeExpertsError, match="expert 1"):
        stacked_product(tables.__getitem__, 2, device, torch.float32)


def test_codes_times_scales_are_numbers_of_float16() -> None:
    scales = torch.tensor([[1e6, 3.0], [1e-6, 1e-9]])
    words, _ = pack_scales(scales, None, 2)
    largest = words.view(torch.float16).float().abs().max()
    assert float(largest) * 255 < torch.finfo(torch.float16).max
