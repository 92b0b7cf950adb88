"""Groups of 32: what they hold exactly, how far off they are otherwise, and what they cost."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from gguf import dequantize
from gguf import quantize as quantize_as_gguf
from gguf.constants import GGMLQuantizationType
from hypothesis import given
from hypothesis import strategies as st

from inference.loading.weights.quantized_files import CHUNK_WEIGHTS, quantize
from inference.models.weights.stored import GroupedWeight
from tests.cases import each_case

FLOAT16_STEP = 2**-11
"""Half of float16's distance between neighbours, as a part of the number."""


@pytest.fixture(scope="module")
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def random_weight(seed: int, size: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(24, 96, generator=generator) * size).to(dtype)


def by_group(weight: torch.Tensor) -> torch.Tensor:
    return weight.float().view(weight.shape[0], -1, 32)


def error(weight: torch.Tensor, grouped: GroupedWeight) -> torch.Tensor:
    """(out_features, num_groups, 32)"""
    return (by_group(grouped.dequantize()) - by_group(weight)).abs()


@given(
    seed=st.integers(0, 2**31),
    exponent=st.integers(-20, 12),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_eight_bits_are_off_by_half_a_scale_at_most(
    threads: ThreadPoolExecutor, seed: int, exponent: int, dtype: torch.dtype
) -> None:
    weight = random_weight(seed, 2.0**exponent, dtype)
    grouped = quantize(weight, 8, threads)
    assert grouped.minimums is None and grouped.codes.dtype == torch.int8
    assert (error(weight, grouped) <= 0.5001 * grouped.scales.float().unsqueeze(-1)).all()


@given(seed=st.integers(0, 2**31), exponent=st.integers(-8, 8), bits=st.sampled_from([4, 5, 6]))
def test_fewer_bits_are_never_worse_than_a_groups_ends(
    threads: ThreadPoolExecutor, seed: int, exponent: int, bits: int
) -> None:
    """4 bits: than its smallest and largest value; else than its largest at the lowest code."""
    weight = random_weight(seed, 2.0**exponent)
    grouped, groups = quantize(weight, bits, threads), by_group(weight)
    lowest, highest = (0, 15) if bits == 4 else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    assert lowest <= grouped.codes.min() and grouped.codes.max() <= highest
    assert (grouped.minimums is None) == (bits != 4)
    if bits == 4:
        minimums = groups.amin(-1, keepdim=True)
        scales, minimums = (groups.amax(-1, keepdim=True) - minimums) / 15, minimums.half().float()
    else:
        minimums = torch.zeros(1)
        scales = groups.gather(-1, groups.abs().argmax(-1, keepdim=True)) / lowest
    scales = scales.half().float()
    codes = ((groups - minimums) / scales).round().clamp(lowest, highest)
    plain = ((scales * codes + minimums - groups) ** 2).sum(-1)
    assert ((error(weight, grouped) ** 2).sum(-1) <= plain * 1.001).all()


@each_case(("bits", "theirs"), [(4, "Q4_1"), (5, "Q5_0"), (8, "Q8_0")])
def test_no_more_error_than_ggufs_own_reference(
    threads: ThreadPoolExecutor, bits: int, theirs: str
) -> None:
    """gguf quantises by the rules of llama.cpp. Of 8 bits ours has one code less."""
    weight = torch.randn(256, 512, generator=torch.Generator().manual_seed(2))
    type = GGMLQuantizationType[theirs]
    found = torch.from_numpy(dequantize(quantize_as_gguf(weight.numpy(), type), type))
    ours = (error(weight, quantize(weight, bits, threads)) ** 2).mean()
    assert ours <= (1.01 if bits == 8 else 0.95) * (found - weight).square().mean()


@each_case(("bits", "lowest", "highest"), [(4, 0, 15), (5, -16, 15), (6, -32, 31), (8, -127, 127)])
def test_what_groups_can_hold_they_hold_exactly(
    threads: ThreadPoolExecutor, bits: int, lowest: int, highest: int
) -> None:
    generator = torch.Generator().manual_seed(3)
    scales = (torch.rand(40, 2, generator=generator) + 0.5).half()
    codes = torch.randint(lowest + 1, highest, (40, 64), generator=generator)
    codes[:, ::32] = highest if bits == 8 else lowest
    if bits == 4:
        codes[:, 1::32] = highest
    source = GroupedWeight(
        bits=bits,
        codes=codes.to(torch.uint8 if bits == 4 else torch.int8),
        scales=scales,
        minimums=torch.randn(40, 2, generator=generator).half() if bits == 4 else None,
    )
    grouped = quantize(source.dequantize(), bits, threads)
    assert torch.equal(grouped.codes, source.codes)
    assert torch.equal(grouped.dequantize(), source.dequantize())


@each_case("bits", [4, 5, 6, 8])
@each_case("value", [0.0, -0.25, 3.0])
def test_a_group_of_one_value(threads: ThreadPoolExecutor, bits: int, value: float) -> None:
    weight = torch.full((2, 32), value)
    off = error(weight, quantize(weight, bits, threads))
    assert (off <= abs(value) * FLOAT16_STEP * 2).all()


@each_case("bits", [4, 5, 6, 8])
def test_chunks_do_not_show(threads: ThreadPoolExecutor, bits: int) -> None:
    features = 256
    num_rows = 2 * CHUNK_WEIGHTS // features + 3
    weight = torch.randn(num_rows, features, generator=torch.Generator().manual_seed(5))
    whole = quantize(weight, bits, threads)
    for rows in (slice(0, 7), slice(num_rows - 5, num_rows)):
        part = quantize(weight[rows], bits, threads)
        assert torch.equal(part.codes, whole.codes[rows])
        assert torch.equal(part.scales, whole.scales[rows])


@each_case("value", [float("nan"), float("inf"), -1e6])
def test_values_that_no_group_can_hold(threads: ThreadPoolExecutor, value: float) -> None:
    weight = torch.zeros(3, 64)
    weight[2, 40] = value
    with pytest.raises(ValueError, match="not finite, or beyond float16"):
        quantize(weight, 4, threads)


def test_memory_beyond_the_result_is_a_few_chunks() -> None:
    weight = torch.zeros(4096, 1024, dtype=torch.bfloat16)
    tracemalloc.start()
    with ThreadPoolExecutor(1) as one:
        grouped = quantize(weight, 4, one)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grouped.minimums is not None
    result = grouped.codes.nbytes + grouped.scales.nbytes + grouped.minimums.nbytes
    assert peak - result < 16 * 4 * CHUNK_WEIGHTS
