"""A step as arrays, built once, and on a device; its rows' adapters; and keys and values stored
rounded: their error, and that they do not differ otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch

from inference.models.adapter import (
    AdapterWeights,
    LowRank,
    StepAdapters,
    TorchAdapter,
    row_groups,
    torch_adapter,
)
from inference.models.device_step import DeviceStep
from inference.models.kv_format import KVFormat, kv_bytes_per_block
from inference.models.layers import attention as attention_module
from inference.models.layers.attention import TorchAttention, decode_blocks, gathered_bytes
from inference.models.layers.linear import DenseLinear
from inference.models.paged_kv import LayerKV, PagedKV, dequantize, new_layer, quantize
from inference.models.step_input import (
    EMPTY_STATE,
    LONE_STATE,
    Query,
    StepInput,
    aligned,
)
from tests.cases import each_case
from tests.inference.models.dense_weights import TINY
from tests.inference.models.steps import step_of

CPU = torch.device("cpu")
BLOCK_TOKENS = 4


QUERIES = ([10, 11, 12], 6, [5, 2, 7, 9]), ([20], 2, [3]), (range(30, 35), 3, [1, 4, 6])
"""A sequence with two drafts, one that decodes alone, and a chunk of a prompt."""
SLOTS = [2, 3, 0], [4, 5, 6]


def test_a_step_and_what_a_device_gets_of_it() -> None:
    size: dict[str, Any] = {"block_tokens": BLOCK_TOKENS, "num_decodes": 2}
    given = step_of(*QUERIES, **size, logit_rows=[0, 1, 2, 3, 8], state_slots=SLOTS)
    assert given.positions.tolist() == [6, 7, 8, 2, 3, 4, 5, 6, 7]
    assert given.slots.tolist() == [10, 11, 28, 14, 7, 16, 17, 18, 19]
    assert given.query_start.tolist() == [0, 3, 4, 9]
    assert given.context_lens.tolist() == [9, 3, 8]
    assert given.block_table.tolist() == [[5, 2, 7], [3, 0, 0], [1, 4, 6]]
    arrays = [given.token_ids, given.positions, given.slots, given.query_start, given.block_table]
    assert {array.dtype for array in arrays} == {np.dtype(np.int32)}
    step = DeviceStep.of(given, CPU)
    assert step.sequences.tolist() == [0, 0, 0, 1, 2, 2, 2, 2, 2]
    assert step.block_table.tolist() == given.block_table.tolist()
    assert {step.sequences.dtype, step.block_table.dtype} == {torch.int32}
    assert step.state_reads is not None and step.state_reads.tolist() == [2, 3, 0]
    assert step.state_writes is not None and step.state_writes.tolist() == [4, 5, 6]
    assert step.logit_rows is not None and step.logit_rows.tolist() == [0, 1, 2, 3, 8]
    assert step.prompts == (Query(sequence=2, first_row=4, last_row=9, start=3, end=8),)
    assert step.states_of(step.prompts[0]) == (0, 6)
    # Rows of a sequence with a state come one after the other.
    found = [[part.tolist() for part in depth] for depth in step.decode_rows_by_depth]
    assert found == [[[0, 3], [2, 3], [4, 5]], [[1], [4], [4]], [[2], [4], [4]]]
    # A long prompt does not widen the table of rows that decode.
    queries = ([1], 0, [5]), ([1] * 8, 0, [1, 4])
    step = DeviceStep.of(step_of(*queries, block_tokens=BLOCK_TOKENS, num_decodes=1), CPU)
    assert decode_blocks(step).tolist() == [[5]]
    assert step.logit_rows is None and step.state_reads is None
    assert step.states_of(step.prompts[0]) == (EMPTY_STATE, LONE_STATE)
    # Tokens that only the device knows come first.
    decodes, unread = (([0], 6, [5, 2]), ([0], 2, [3])), torch.tensor([77, 78])
    step = DeviceStep.of(step_of(*decodes, QUERIES[2], **size, unread_ids=unread), CPU)
    assert step.token_ids.tolist() == [77, 78, 30, 31, 32, 33, 34]
    alone = step_of(*decodes, **size, unread_ids=unread)
    assert DeviceStep.of(alone, CPU).token_ids is unread


def test_arrays_are_aligned_alike_whatever_their_lengths() -> None:
    for num_rows in range(1, 9):
        rows = np.arange(num_rows, dtype=np.int32)
        parts = aligned([rows, rows[:, None], rows])
        assert [part.nbytes % 16 for part in parts] == [0, 0, 0]
        assert all(part[:num_rows].tolist() == rows.tolist() for part in parts)


NUM_DECODES, NUM_ROWS = 5, 8
PROJECTION = DenseLinear(torch.zeros(6, 8))


def adapter(rank: int) -> TorchAdapter:
    generator = torch.Generator().manual_seed(rank)
    down, up = (torch.randn(*shape, generator=generator) for shape in ((rank, 8), (6, rank)))
    weights = AdapterWeights({"q_proj": LowRank(down, up, scale=0.5)})
    return torch_adapter(weights, {id(PROJECTION): [("q_proj", 6)]}, CPU, torch.float32)


FIRST, SECOND = adapter(2), adapter(4)
SPAN = (FIRST, slice(5, 8))


@each_case(
    ("adapters", "groups"),
    [
        ((FIRST, SECOND, None, FIRST, SECOND, FIRST), [(FIRST, [0, 3]), (SECOND, [1, 4]), SPAN]),
        ((FIRST, FIRST, None, SECOND, SECOND, None), [(FIRST, slice(0, 2)), (SECOND, slice(3, 5))]),
        ((None, None, None, None, None, SECOND), [(SECOND, slice(5, 8))]),
    ],
    ids=["scattered", "neighbours, without a list of rows", "nobody decodes with one"],
)
def test_adapters_together_or_one_by_one_are_the_same_sums(
    adapters: tuple[TorchAdapter | None, ...], groups: list[tuple[TorchAdapter, object]]
) -> None:
    """Of five rows that decode, and a prompt of three."""
    queries = [([0], 0, [0])] * NUM_DECODES + [([0] * 3, 0, [0])]
    step = step_of(*queries, block_tokens=4, num_decodes=NUM_DECODES, adapters=adapters)
    assert row_groups(step, together=True) == groups
    x = torch.randn(NUM_ROWS, 8, generator=torch.Generator().manual_seed(7))
    one_by_one, together = (
        StepAdapters(step, CPU, together=together).add_to(torch.zeros(NUM_ROWS, 6), PROJECTION, x)
        for together in (False, True)
    )
    assert bool(one_by_one.any())
    torch.testing.assert_close(together, one_by_one)
    without = [row for row, own in enumerate(adapters[:NUM_DECODES]) if own is None]
    assert not bool(together[without].any())


KV_BLOCK = 8
LARGEST_ERROR = {"fp32": 0.0, "bf16": 2**-8, "fp16": 2**-11, "int8": 0.5 / 127, "fp8": 2**-4}
"""Relative to the largest value of a group."""


@each_case("kv_format", get_args(KVFormat))
@each_case("head_dim", [16, 64, 80, 128])
def test_what_is_written_is_read(kv_format: KVFormat, head_dim: int) -> None:
    generator = torch.Generator().manual_seed(head_dim)
    keys, values = torch.randn(2, 5, 3, head_dim, generator=generator)
    layer = new_layer(4 * KV_BLOCK, 3, head_dim, kv_format, CPU)
    slots = torch.tensor([9, 8, 31, 16, 12])
    layer.write(slots, keys, values)
    read = layer.gather(torch.tensor([1, 2, 3]), KV_BLOCK, torch.float32)
    for found, wanted in zip(read[slots - KV_BLOCK].unbind(1), (keys, values), strict=True):
        assert float((found - wanted).abs().max() / wanted.abs().max()) <= LARGEST_ERROR[kv_format]
    config = replace(TINY, num_heads=6, num_kv_heads=3, head_dim=head_dim)
    kv = PagedKV(config, 4, KV_BLOCK, kv_format, CPU)
    tensors = [t for layer in kv.layers for t in (layer.entries, layer.scales) if t is not None]
    num_bytes = sum(tensor.nbytes for tensor in tensors)
    assert num_bytes == (4 + 1) * kv_bytes_per_block(config, KV_BLOCK, kv_format)


@each_case("dtype", [torch.int8, torch.float8_e4m3fn])
def test_zeros_stay_zeros_and_what_is_no_number_is_seen(dtype: torch.dtype) -> None:
    values = torch.zeros(2, 96)
    values[1, 70] = float("nan")
    codes, scales = quantize(values, dtype)
    read = dequantize(codes, scales)
    assert bool((read[0] == 0).all())
    assert bool((read[1, :64] == 0).all())
    assert bool(read[1, 64:].isnan().all())


@each_case("kv_format", get_args(KVFormat))
def test_a_row_sees_the_same_as_prompt_and_as_decode(kv_format: KVFormat) -> None:
    generator = torch.Generator().manual_seed(1)
    queries = torch.randn(13, 4, 16, generator=generator)
    keys, values = torch.randn(2, 13, 2, 16, generator=generator)
    layer = new_layer(3 * KV_BLOCK, 2, 16, kv_format, CPU)
    table = np.array([[2, 0]], dtype=np.int32)
    slots = torch.tensor([16 + p if p < 8 else p - 8 for p in range(13)])
    layer.write(slots, keys, values)
    attention = TorchAttention(None, torch.float32)

    def attended(start: int, end: int, *, num_decodes: int) -> torch.Tensor:
        given = [0] * (end - start), [start], [end - start], table, KV_BLOCK
        step = StepInput.of_queries(*given, num_decodes=num_decodes)
        rows = slice(start, end)
        attend = attention.of_step(DeviceStep.of(step, CPU))
        return attend(queries[rows], keys[rows], values[rows], layer)

    whole = attended(0, 13, num_decodes=0)
    parts = [attended(0, 7, num_decodes=0), attended(7, 13, num_decodes=0)]
    assert torch.allclose(torch.cat(parts), whole, atol=1e-5)
    assert torch.allclose(attended(12, 13, num_decodes=1), whole[12:], atol=1e-5)
    assert torch.allclose(attended(9, 13, num_decodes=1), whole[9:], atol=1e-5)


@each_case("kv_format", ["fp32", "bf16", "int8"])
@each_case("window", [None, 11])
def test_rows_times_the_longest_context_are_never_copied_at_once(
    kv_format: KVFormat, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(2)
    num_rows, num_columns = 9, 5
    layer = new_layer((num_rows * num_columns + 1) * KV_BLOCK, 2, 16, kv_format, CPU)
    keys, values = torch.randn(2, len(layer.entries), 2, 16, generator=generator)
    layer.write(torch.arange(len(layer.entries)), keys, values)
    queries = torch.randn(num_rows, 4, 16, generator=generator)
    positions = [0, 39, 7, 8, 22, 3, 31, 16, 1]
    block_ids = torch.randperm(num_rows * num_columns, generator=generator).view(num_rows, -1)
    step = StepInput.of_decodes([0] * 9, positions, block_ids.int().numpy(), KV_BLOCK)
    on_device = DeviceStep.of(step, CPU)
    wanted = TorchAttention(window, torch.float32).of_step(on_device)(queries, None, None, layer)

    gathered: list[int] = []
    gather = LayerKV.gather

    def watched(self: LayerKV, ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        gathered.append(len(ids) * KV_BLOCK * gathered_bytes(self))
        return gather(self, ids, *rest)

    monkeypatch.setattr(LayerKV, "gather", watched)
    row_bytes = num_columns * KV_BLOCK * gathered_bytes(layer)
    for most_rows in (2, 1, 0):  # a single row is copied whatever it takes
        gathered.clear()
        monkeypatch.setattr(attention_module, "MOST_GATHERED_BYTES", most_rows * row_bytes)
        attend = TorchAttention(window, torch.float32).of_step(on_device)
        assert torch.equal(attend(queries, None, None, layer), wanted)
        assert max(gathered) <= max(most_rows, 1) * row_bytes
        assert sum(gathered) == num_rows * row_bytes
