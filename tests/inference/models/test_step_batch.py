"""A step as arrays, built once, and the batch of tensors that models take."""

from __future__ import annotations

import numpy as np
import torch

from inference.models.batch import EMPTY_STATE, LONE_STATE
from inference.models.step_batch import batch_on
from inference.models.step_input import StepInput, block_table_of

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
    arrays = [step.token_ids, step.positions, step.slots, step.query_start, step.block_table]
    assert {array.dtype for array in arrays} == {np.dtype(np.int32)}


def test_the_table_is_as_wide_as_the_step_needs() -> None:
    assert mixed_step().block_table.tolist() == [[5, 2, 7], [3, 0, 0], [1, 4, 6]]


def test_a_batch_has_a_table_row_for_each_row_that_decodes() -> None:
    batch = batch_on(CPU, mixed_step())
    assert batch.decode_runs == (3, 1)
    assert batch.decode_blocks.tolist() == [[5, 2, 7]] * 3 + [[3, 0, 0]]
    assert batch.state_reads is not None and batch.state_reads.tolist() == [2, 2, 2, 3]
    assert batch.state_writes is not None and batch.state_writes.tolist() == [4, 4, 4, 5]
    (span,) = batch.spans
    assert (span.first_row, span.last_row, span.start, span.end) == (4, 9, 3, 8)
    assert (span.block_ids.tolist(), span.state_read, span.state_write) == ([1, 4], 0, 6)
    assert batch.logit_rows is not None and batch.logit_rows.tolist() == [0, 1, 2, 3, 8]


def test_a_long_prompt_does_not_widen_the_table_of_rows_that_decode() -> None:
    step = StepInput.of_queries(
        [1] * 9, [0, 0], [1, 8], block_table_of([[5], [1, 4]]), BLOCK_TOKENS, num_decodes=1
    )
    batch = batch_on(CPU, step)
    assert batch.decode_blocks.tolist() == [[5]]
    assert batch.logit_rows is None and batch.decode_runs is None and batch.state_reads is None
    assert (batch.spans[0].state_read, batch.spans[0].state_write) == (EMPTY_STATE, LONE_STATE)


def test_adapters_are_of_rows_that_decode_and_of_prompts() -> None:
    batch = batch_on(CPU, mixed_step(adapters=("a", None, "b")))
    assert batch.adapters == ("a", "a", "a", None, "b")


def test_tokens_that_only_the_device_knows_come_first() -> None:
    plain = {"query_lens": [1, 1, 5], "token_ids": [0, 0, 30, 31, 32, 33, 34], "logit_rows": None}
    unread = torch.tensor([77, 78])
    batch = batch_on(CPU, mixed_step(**plain, unread_ids=unread))
    assert batch.token_ids.tolist() == [77, 78, 30, 31, 32, 33, 34]
    alone = StepInput.of_queries(
        [0, 0], [6, 2], [1, 1], block_table_of([[1, 2], [3]]), 4, num_decodes=2, unread_ids=unread
    )
    assert batch_on(CPU, alone).token_ids is unread
