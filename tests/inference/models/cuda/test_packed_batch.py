"""A batch's rows times a packed weight, in every format and however the features are split."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

from inference.models.cuda import packed_batch
from inference.models.cuda.packed import PackedLinear
from inference.models.cuda.packed_batch import (
    BATCH_TILES,
    ROWS,
    BatchTile,
    batch_product,
    batch_tile,
    is_copy_faster,
    num_splits,
    tile_rows,
)
from inference.models.stored_weights import PackedWeight, with_tensors
from tests.cases import each_case
from tests.inference.models.cuda.test_packed import (
    WEIGHTS,
    error_of,
    of_width,
    random_rows,
    tolerance,
)

pytestmark = pytest.mark.slow

FLOAT = torch.float32
TILE = BatchTile(outputs=32, step_tiles=1, warps=4, stages=2)
"""Smaller than a card's, so that the weights' 37 outputs are in two of them."""
WHOLE, SPLIT = 0, 1
"""How many multiprocessors the features are split for: none, or one, which gets all it can."""


@pytest.fixture(autouse=True)
def short_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights have some four steps, which a card would not split."""
    monkeypatch.setattr(packed_batch, "LEAST_SPLIT_STEPS", 1)


def multiply(
    linear: PackedLinear, x: torch.Tensor, tile: BatchTile = TILE, num_processors: int = SPLIT
) -> torch.Tensor:
    return batch_product(linear.packed, x, linear.out_features, tile, num_processors)


def check(
    linear: PackedLinear,
    weight: PackedWeight,
    rows: int,
    *processors: int,
    tile: BatchTile = TILE,
    dtype: torch.dtype = FLOAT,
    most: float | None = None,
) -> None:
    x = random_rows(rows, weight.shape[1]).to(dtype)
    for num_processors in processors:
        found = multiply(linear, x.to(linear.packed.words.device), tile, num_processors)
        assert error_of(found, weight, x, bias=False) < (most or tolerance(weight)), rows


@each_case("name", WEIGHTS)
def test_a_batch_is_multiplied_by_the_dequantised_weight(device: torch.device, name: str) -> None:
    weight = WEIGHTS[name]
    linear = PackedLinear(weight, device, FLOAT)
    check(linear, weight, 11, WHOLE, SPLIT)
    if name in ("Q4", "Q6_K", "Q8"):
        for rows in (1, 16, 33, 64, 65):
            check(linear, weight, rows, SPLIT, tile=replace(TILE, step_tiles=2))
    if name in ("Q4", "Q5", "Q5 with minimums", "Q8"):  # features that do not fill a step
        for in_features, step_tiles in product((32, 96, 576), (1, 2)):
            part, tile = of_width(name, in_features), replace(TILE, step_tiles=step_tiles)
            check(PackedLinear(part, device, FLOAT), part, 9, WHOLE, SPLIT, tile=tile, most=1e-5)
    if name == "Q4_K":
        for dtype in (torch.bfloat16, torch.float16):
            linear = PackedLinear(weight, device, dtype)
            check(linear, weight, 12, WHOLE, SPLIT, dtype=dtype, most=0.02)


def test_a_row_is_the_same_whoever_is_beside_it(device: torch.device) -> None:
    x = random_rows(16).to(device)
    linear = PackedLinear(WEIGHTS["Q4_K"], device, FLOAT)
    some = multiply(linear, x[5:16])
    assert torch.equal(some, multiply(linear, x)[5:16])
    assert torch.equal(some, multiply(linear, x[5:16]))


def row_whose_sum_depends_on_order(linear: PackedLinear) -> torch.Tensor:
    """(in_features,): one feature in each tile of words counts, so that a tile's own sum is exact,
    and from tile to tile values are a million times as large or cancel."""
    x = torch.zeros(linear.in_features)
    num_tiles = linear.packed.words.shape[1] // linear.packed.tile_words
    tile_features = -(-linear.packed.layout["padded_features"] // num_tiles)
    sizes = torch.tensor([1.0, 1e6, -1e6, 0.3])
    tiles = torch.arange(0, linear.in_features, tile_features)
    x[tiles] = sizes[torch.arange(len(tiles)) % len(sizes)]
    return x


@each_case("name", ["Q4_K", "Q5 with minimums", "Q6_K", "Q8"])
def test_a_row_has_the_same_sums_in_a_tile_of_any_size(device: torch.device, name: str) -> None:
    def twice(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.dim() == 1 else torch.cat([tensor, tensor], dim=1)

    weight = with_tensors(with_tensors(WEIGHTS[name], twice), twice)
    linear = PackedLinear(weight, device, FLOAT)
    row = row_whose_sum_depends_on_order(linear)
    bits = linear.packed.layout["bits"]
    found = [
        multiply(linear, row.repeat(rows, 1).to(device), BATCH_TILES[bits, rows], SPLIT)
        for rows in ROWS
    ]
    for one in found:
        assert torch.equal(one, found[0][:1].expand_as(one))
    unsplit = multiply(linear, row.repeat(16, 1).to(device), BATCH_TILES[bits, 16], WHOLE)
    assert not torch.equal(unsplit, found[0]), "the order of sums is seen in this row"


def test_which_tile_a_batch_gets(device: torch.device) -> None:
    chosen = [batch_tile(4, rows) for rows in (8, 9, 32, 33, 100)]
    assert chosen == [None, *(BATCH_TILES[4, rows] for rows in (16, 32, 64, 64))]
    assert [batch_tile(8, rows) for rows in (8, 9)] == [None, BATCH_TILES[8, 16]]
    assert batch_tile(6, 1) == BATCH_TILES[6, 16]
    weight = WEIGHTS["Q4"]
    assert weight.bias is not None
    linear = PackedLinear(weight, device, FLOAT)
    x = random_rows(9).to(device)
    without_bias = linear.batch_product(x, BATCH_TILES[4, 16])
    assert torch.equal(linear.decode(x), without_bias + weight.bias.to(device))
    assert torch.equal(linear.decode(x[:8]), linear.row_product(x[:8]) + weight.bias.to(device))
    # A kept copy multiplies decode steps of enough rows.
    with_copy = PackedLinear(weight, device, FLOAT, prefill_copy=True)
    assert torch.equal(with_copy.decode(x[:8]), linear.decode(x[:8]))
    assert torch.equal(with_copy.decode(x), with_copy.prefill(x))


@each_case(
    ("bits", "rows", "millions", "is_faster"),
    [
        (4, 8, 4, False),
        (4, 9, 4, True),
        (4, 9, 17, False),
        (4, 64, 25, True),
        (4, 64, 59, False),
        (6, 1, 4, True),
        (8, 65, 500, True),
    ],
)
def test_a_copy_is_taken_where_it_is_the_faster(
    bits: int, rows: int, millions: int, is_faster: bool
) -> None:
    assert is_copy_faster(bits, num_rows=rows, num_weights=millions * 10**6) == is_faster


def test_splits_occupy_the_card_and_none_is_empty_or_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_batch, "LEAST_SPLIT_STEPS", 4)
    assert num_splits(outputs=4096, num_steps=32, num_processors=132) == 8
    assert num_splits(outputs=4096, num_steps=16, num_processors=132) == 4
    assert num_splits(outputs=40_000, num_steps=32, num_processors=132) == 1
    assert num_splits(outputs=64, num_steps=2, num_processors=132) == 1
    for num_steps in range(1, 60):
        splits = num_splits(1000, num_steps, 132)
        steps = -(-num_steps // splits)
        assert (splits - 1) * steps < num_steps <= splits * steps
    assert [tile_rows(rows) for rows in (1, 16, 17, 64, 90)] == [16, 16, 32, 64, 64]
