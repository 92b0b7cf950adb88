"""A step as arrays, built once, and on a device; and its rows' adapters."""

from __future__ import annotations

import numpy as np
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
from inference.models.layers.attention import decode_blocks
from inference.models.layers.linear import DenseLinear
from inference.models.step_input import (
    EMPTY_STATE,
    LONE_STATE,
    Query,
    StepInput,
    aligned,
    block_table_of,
)
from tests.cases import each_case

CPU = torch.device("cpu")
BLOCK_TOKENS = 4


def mixed_step(**changes: object) -> StepInput:
    """A sequence with two drafts, one that decodes alone, and a chunk of a prompt."""
    fields: dict[str, object] = {
        "token_ids": [10, 11, 12, 20, 30, 31, 32, 33, 34],
        "starts": [6, 2, 3],
        "query_lens": [3, 1, 5],
        "block_table": block_table_of([[5, 2, 7, 9], [3], [1, 4, 6]]),
        "block_tokens": BLOCK_TOKENS,
        "num_decodes": 2,
        "logit_rows": [0, 1, 2, 3, 8],
        "state_slots": ([2, 3, 0], [4, 5, 6]),
    }
    return StepInput.of_queries(**(fields | changes))  # type: ignore[arg-type]


def test_rows_follow_from_the_queries() -> None:
    step = mixed_step()
    assert step.positions.tolist() == [6, 7, 8, 2, 3, 4, 5, 6, 7]
    assert step.slots.tolist() == [10, 11, 28, 14, 7, 16, 17, 18, 19]
    assert step.query_start.tolist() == [0, 3, 4, 9]
    assert step.context_lens.tolist() == [9, 3, 8]
    assert step.block_table.tolist() == [[5, 2, 7], [3, 0, 0], [1, 4, 6]]
    arrays = [step.token_ids, step.positions, step.slots, step.query_start, step.block_table]
    assert {array.dtype for array in arrays} == {np.dtype(np.int32)}


def test_a_device_gets_the_step_as_it_is() -> None:
    step = DeviceStep.of(mixed_step(), CPU)
    assert step.sequences.tolist() == [0, 0, 0, 1, 2, 2, 2, 2, 2]
    assert step.block_table.tolist() == [[5, 2, 7], [3, 0, 0], [1, 4, 6]]
    assert {step.sequences.dtype, step.block_table.dtype} == {torch.int32}
    assert step.state_reads is not None and step.state_reads.tolist() == [2, 3, 0]
    assert step.state_writes is not None and step.state_writes.tolist() == [4, 5, 6]
    assert step.logit_rows is not None and step.logit_rows.tolist() == [0, 1, 2, 3, 8]
    assert step.prompts == (Query(sequence=2, first_row=4, last_row=9, start=3, end=8),)
    assert step.states_of(step.prompts[0]) == (0, 6)
    # Rows of a sequence with a state come one after the other.
    found = [[part.tolist() for part in depth] for depth in step.decode_rows_by_depth]
    assert found == [[[0, 3], [2, 3], [4, 5]], [[1], [4], [4]], [[2], [4], [4]]]


def test_a_long_prompt_does_not_widen_the_table_of_rows_that_decode() -> None:
    step = StepInput.of_queries(
        [1] * 9, [0, 0], [1, 8], block_table_of([[5], [1, 4]]), BLOCK_TOKENS, num_decodes=1
    )
    on_device = DeviceStep.of(step, CPU)
    assert decode_blocks(on_device).tolist() == [[5]]
    assert on_device.logit_rows is None and on_device.state_reads is None
    assert on_device.states_of(on_device.prompts[0]) == (EMPTY_STATE, LONE_STATE)


def test_arrays_are_aligned_alike_whatever_their_lengths() -> None:
    for num_rows in range(1, 9):
        rows = np.arange(num_rows, dtype=np.int32)
        parts = aligned([rows, rows[:, None], rows])
        assert [part.nbytes % 16 for part in parts] == [0, 0, 0]
        assert all(part[:num_rows].tolist() == rows.tolist() for part in parts)


def test_tokens_that_only_the_device_knows_come_first() -> None:
    plain = {"query_lens": [1, 1, 5], "token_ids": [0, 0, 30, 31, 32, 33, 34], "logit_rows": None}
    unread = torch.tensor([77, 78])
    step = DeviceStep.of(mixed_step(**plain, unread_ids=unread), CPU)
    assert step.token_ids.tolist() == [77, 78, 30, 31, 32, 33, 34]
    alone = StepInput.of_queries(
        [0, 0], [6, 2], [1, 1], block_table_of([[1, 2], [3]]), 4, num_decodes=2, unread_ids=unread
    )
    assert DeviceStep.of(alone, CPU).token_ids is unread


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
    lens = [1] * NUM_DECODES + [3]
    table = np.zeros((len(lens), 1), dtype=np.int32)
    step = StepInput.of_queries(
        *([0] * NUM_ROWS, [0] * len(lens), lens, table, 4),
        num_decodes=NUM_DECODES,
        adapters=adapters,
    )
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
