"""Packed weights on the card give what their dequantised numbers give, in every stored format:
row by row, and in batches, however the features are split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType

from benchmarks.gguf_files import random_blocks
from inference.loading.formats import FORMATS
from inference.loading.gguf import quants
from inference.loading.gguf.codebooks import CODEBOOK_UNPACKERS
from inference.models.cuda import packed_batch
from inference.models.cuda.packed import PackedLinear
from inference.models.cuda.packed_batch import BATCH_TILES, BatchTile, num_splits
from inference.models.cuda.trials import LARGEST_ERROR, PackedTrials, captured_ms
from inference.models.layers.linear import LinearFactory, QuantizedLinear
from inference.models.stored_weights import (
    CodebookWeight,
    GroupedWeight,
    PackedWeight,
    SuperBlockWeight,
    with_tensors,
)
from tests.cases import each_case
from tests.inference.models.stored_weights import (
    IN_FEATURES,
    K_KINDS,
    OUT_FEATURES,
    TABLE_KINDS,
    random_expert,
)

pytestmark = pytest.mark.slow


def random_weight(kind: str) -> PackedWeight:
    """One of groups has a bias."""
    weight = random_expert(kind, seed=4)
    if not isinstance(weight, GroupedWeight):
        return weight
    return replace(
        weight, bias=torch.randn(OUT_FEATURES, generator=torch.Generator().manual_seed(4))
    )


FLOAT = torch.float32
TABLE_TYPES = [type.name for type in CODEBOOK_UNPACKERS]
GROUPED_KINDS = ("Q4", "Q5", "Q5 with minimums", "Q6", "Q8")
WEIGHTS = {kind: random_weight(kind) for kind in (*GROUPED_KINDS, *K_KINDS, *TABLE_KINDS)}


def of_width(name: str, in_features: int) -> PackedWeight:
    def cut(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == 1:
            return tensor
        features = in_features * tensor.shape[1] // IN_FEATURES
        return torch.cat([tensor, tensor], dim=1)[:, :features]

    return with_tensors(WEIGHTS[name], cut)


def error_of(
    found: torch.Tensor, weight: PackedWeight, x: torch.Tensor, bias: bool = True
) -> float:
    """The largest error relative to the largest product by the dequantised weight."""
    wanted = x.float() @ weight.dequantize().T
    if bias and weight.bias is not None:
        wanted = wanted + weight.bias
    assert (found.shape, found.dtype) == (wanted.shape, x.dtype)
    return float((found.cpu().float() - wanted).abs().max() / wanted.abs().max())


def check(linear: PackedLinear, weight: PackedWeight, x: torch.Tensor, most: float) -> None:
    for phase in (linear.decode, linear.prefill):
        assert error_of(phase(x.to(linear.packed.words.device)), weight, x) < most


def tolerance(weight: PackedWeight) -> float:
    """Scales that are products are rounded by float16."""
    return 2**-11 if isinstance(weight, SuperBlockWeight | CodebookWeight) else 1e-5


def random_rows(rows: int, in_features: int = IN_FEATURES) -> torch.Tensor:
    return torch.randn(rows, in_features, generator=torch.Generator().manual_seed(rows))


@each_case("name", WEIGHTS)
def test_both_phases_multiply_by_the_dequantised_weight(device: torch.device, name: str) -> None:
    weight = WEIGHTS[name]
    check(PackedLinear(weight, device, FLOAT), weight, random_rows(19), tolerance(weight))
    if name == "Q6_K":
        for dtype in (torch.bfloat16, torch.float16):
            check(PackedLinear(weight, device, dtype), weight, random_rows(3).to(dtype), 0.02)
    if name in ("Q4", "Q5", "Q8"):  # features that do not fill a step
        for in_features in (96, 576):
            part = of_width(name, in_features)
            check(PackedLinear(part, device, FLOAT), part, random_rows(2, in_features), 1e-4)


@each_case("name", TABLE_TYPES)
def test_types_of_tables_stay_packed_in_as_much_memory_as_is_planned(
    device: torch.device, name: str
) -> None:
    type = GGMLQuantizationType[name]
    blocks = random_blocks(np.random.default_rng(3), type, (16, 1024), 0.1)
    weight = quants.stored(blocks, type)
    assert PackedTrials(device, FLOAT).reason_against(weight) is None
    linear = PackedLinear(weight, device, FLOAT)
    check(linear, weight, random_rows(5, 1024), LARGEST_ERROR / 10)
    taken = linear.packed.words.nbytes + linear.packed.scales.nbytes
    assert taken == (FORMATS[name].card or 0) / 8 * 16 * 1024


@each_case("sizes", [(1, 5, 8), (9, 11, 16), (33, 40)])
def test_a_row_is_the_same_whoever_is_beside_it(
    device: torch.device, sizes: tuple[int, ...]
) -> None:
    x = random_rows(40).to(device)
    linear = PackedLinear(WEIGHTS["Q4_K"], device, FLOAT)
    watched = [linear.decode(x[:rows])[0] for rows in sizes]
    watched += [linear.decode(x.flip(0)[-rows:])[-1] for rows in sizes]
    most = 0.0 if device.type == "cuda" else 1e-5
    for row in watched[1:]:
        torch.testing.assert_close(row, watched[0], rtol=most, atol=most)


def test_scales_far_apart_keep_their_precision_and_codes_take_their_bits(
    device: torch.device,
) -> None:
    exponents = torch.tensor([[-30.0], [0.0], [30.0]])
    scales = torch.exp2(exponents - torch.arange(4))
    codes = torch.arange(128, dtype=torch.uint8).remainder(16).repeat(3, 1)
    weight = GroupedWeight(bits=4, codes=codes, scales=scales, minimums=-8 * scales)
    found = PackedLinear(weight, device, FLOAT).unpacked(FLOAT).cpu()
    assert torch.equal(found, weight.dequantize())
    packed = PackedLinear(WEIGHTS["Q6_K"], device, FLOAT).packed
    num_bytes = packed.words.nbytes + packed.high_words.nbytes
    assert num_bytes == OUT_FEATURES * IN_FEATURES * 6 // 8


def test_a_kernel_that_is_wrong_or_cannot_run_is_not_used(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong(PackedLinear):
        def prefill(self, x: torch.Tensor) -> torch.Tensor:
            return super().prefill(x) * 1.1

    def refuse(*arguments: object) -> None:
        raise RuntimeError("no compiler")

    weight = WEIGHTS["Q3_K"]
    for works in (weight, WEIGHTS["Q4"], WEIGHTS["Q6_K"]):
        assert PackedTrials(device, FLOAT).reason_against(works) is None
    for kernel, words in ((Wrong, "the Triton kernel was off by 0.1"), (refuse, "Triton: Runtime")):
        monkeypatch.setattr("inference.models.cuda.packed.PackedLinear", kernel)
        assert (PackedTrials(device, FLOAT).reason_against(weight) or "").startswith(words)


def timed(*milliseconds: float) -> PackedTrials:
    readings = iter(milliseconds)

    def read(work: Callable[[], object], device: torch.device) -> float:
        work()
        return next(readings)

    return PackedTrials(torch.device("cpu"), FLOAT, read)


@pytest.mark.gpu
def test_each_shape_is_timed_once(device: torch.device) -> None:
    def refuse() -> PackedLinear:
        raise torch.cuda.OutOfMemoryError

    weight = WEIGHTS["Q4"]
    longer = with_tensors(weight, lambda tensor: torch.cat([tensor, tensor]))
    other = PackedLinear(weight, device, FLOAT)
    trials = timed(1.0, 2.0, 2.0, 1.0)
    found = [trials.is_slower(w, lambda: other) for w in (weight, weight, longer, longer)]
    assert found == [False, False, True, True]
    assert timed(1.0, 2.0).is_slower(weight, refuse), "what cannot be timed counts as slower"
    if device.type == "cuda":
        work, x = PackedLinear(weight, device, torch.bfloat16), random_rows(1).to(device).bfloat16()
        assert 0 < captured_ms(lambda: work.decode(x), device) < 1


@each_case(
    ("name", "kernel"),
    [
        ("Q4", "4-bit codes in a Triton kernel, prompts on a bfloat16 copy"),
        ("Q6_K", "6-bit codes in a Triton kernel"),
        ("IQ4_XS", "4-bit codes in a Triton kernel"),
        ("TQ2_0", "2-bit codes in a Triton kernel"),
    ],
)
def test_the_factory_takes_the_faster_kernel_and_copies_that_the_estimate_knows_of(
    device: torch.device, name: str, kernel: str
) -> None:
    """Where torch has no kernel nothing is timed."""
    weight, has_copy = with_tensors(WEIGHTS[name], lambda tensor: tensor[:32]), name == "Q4"
    factory = LinearFactory(device, FLOAT)
    factory.packed_trials, factory.prefill_copies = timed(*[1.0, 2.0] * has_copy), True
    linear, words = factory.linear(weight)
    assert isinstance(linear, PackedLinear) and words == kernel
    assert factory.copied_bytes == has_copy * weight.codes.numel() * 2
    x = random_rows(4).to(device)
    assert torch.allclose(linear.prefill(x), linear.decode(x), rtol=1e-3, atol=1e-3)
    if has_copy:
        factory = LinearFactory(torch.device("cpu"), FLOAT)
        factory.packed_trials = timed(3.0, 2.0)
        assert isinstance(factory.linear(weight)[0], QuantizedLinear)


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
    return packed_batch.batch_product(linear.packed, x, linear.out_features, tile, num_processors)


def check_batch(
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
    check_batch(linear, weight, 11, WHOLE, SPLIT)
    if name in ("Q4", "Q6_K", "Q8"):
        for rows in (1, 16, 33, 64, 65):
            check_batch(linear, weight, rows, SPLIT, tile=replace(TILE, step_tiles=2))
    if name in ("Q4", "Q5", "Q5 with minimums", "Q8"):  # features that do not fill a step
        for in_features, step_tiles in product((32, 96, 576), (1, 2)):
            part, tile = of_width(name, in_features), replace(TILE, step_tiles=step_tiles)
            check_batch(
                PackedLinear(part, device, FLOAT), part, 9, WHOLE, SPLIT, tile=tile, most=1e-5
            )
    if name == "Q4_K":
        for dtype in (torch.bfloat16, torch.float16):
            linear = PackedLinear(weight, device, dtype)
            check_batch(linear, weight, 12, WHOLE, SPLIT, dtype=dtype, most=0.02)


def test_a_row_of_a_batch_is_the_same_whoever_is_beside_it(device: torch.device) -> None:
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
        for rows in packed_batch.ROWS
    ]
    for one in found:
        assert torch.equal(one, found[0][:1].expand_as(one))
    unsplit = multiply(linear, row.repeat(16, 1).to(device), BATCH_TILES[bits, 16], WHOLE)
    assert not torch.equal(unsplit, found[0]), "the order of sums is seen in this row"


def test_which_tile_a_batch_gets(device: torch.device) -> None:
    chosen = [packed_batch.batch_tile(4, rows) for rows in (8, 9, 32, 33, 100)]
    assert chosen == [None, *(BATCH_TILES[4, rows] for rows in (16, 32, 64, 64))]
    assert [packed_batch.batch_tile(8, rows) for rows in (8, 9)] == [None, BATCH_TILES[8, 16]]
    assert packed_batch.batch_tile(6, 1) == BATCH_TILES[6, 16]
    weight = WEIGHTS["Q4"]
    linear = PackedLinear(weight, device, FLOAT)
    x = random_rows(9).to(device)
    without_bias = linear.batch_product(x, BATCH_TILES[4, 16])
    assert torch.equal(linear.decode(x), without_bias + weight.bias.to(device))
    assert torch.equal(linear.decode(x[:8]), linear.row_product(x[:8]) + weight.bias.to(device))
    # A kept copy multiplies decode steps of enough rows.
    with_copy = PackedLinear(weight, device, FLOAT, prefill_copy=True)
    assert torch.equal(with_copy.decode(x[:8]), linear.decode(x[:8]))
    assert torch.equal(with_copy.decode(x), with_copy.prefill(x))


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
    assert [packed_batch.tile_rows(rows) for rows in (1, 16, 17, 64, 90)] == [16, 16, 32, 64, 64]
