"""Captured decode steps, with a capture that records nothing and calls again: the copies of inputs,
the step that runs, and a capture that fails. On a card, the real one too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from inference.models.cuda.trials import CudaCapture
from inference.models.decoder import DecoderModel
from inference.models.graphed import Capture, GraphedDecoder, Replay, row_buckets
from inference.models.paged_kv import PagedKV
from inference.models.step_input import StepInput, block_table_of
from tests.inference.models.cuda.tiny import CONFIG, tiny_model
from tests.inference.models.steps import FakeCapture

NUM_BLOCKS, BLOCK_TOKENS = 16, 8
CPU = torch.device("cpu")
CUDA = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    ],
)


def decodes(num_rows: int, num_columns: int, seed: int = 0) -> StepInput:
    """Rows of different lengths, each in blocks of its own as far as they reach; the first as far
    as it may."""
    generator = torch.Generator().manual_seed(seed)
    positions = torch.randint(0, num_columns * BLOCK_TOKENS, (num_rows,), generator=generator)
    positions[0] = num_columns * BLOCK_TOKENS - 1
    blocks = torch.randperm(NUM_BLOCKS, generator=generator)[: num_rows * num_columns]
    token_ids = torch.randint(0, CONFIG.vocab_size, (num_rows,), generator=generator)
    return StepInput.of_decodes(
        token_ids.tolist(),
        positions.tolist(),
        blocks.view(num_rows, num_columns).int().numpy(),
        BLOCK_TOKENS,
    )


def filled(kv: PagedKV) -> PagedKV:
    generator = torch.Generator().manual_seed(5)
    for layer in kv.layers:
        layer.entries.copy_(torch.randn(layer.entries.shape, generator=generator))
    return kv


def captured(
    model: DecoderModel | None = None,
    capture: Capture | None = None,
    *,
    max_rows: int = 6,
    context_tokens: int = 30,
) -> tuple[GraphedDecoder, PagedKV, PagedKV]:
    """Steps captured over the first of two storages of the same content."""
    graphed = GraphedDecoder(model or tiny_model(CPU), capture or FakeCapture())
    ours, theirs = (filled(graphed.new_kv(NUM_BLOCKS, BLOCK_TOKENS)) for _ in range(2))
    graphed.capture(ours, max_rows=max_rows, context_tokens=context_tokens)
    return graphed, filled(ours), theirs


DRAFTS = StepInput.of_queries(
    *([5, 6, 7, 8, 9, 10], [17, 2, 11], [3, 1, 2], block_table_of([[3, 1, 7], [4], [2, 9]])),
    BLOCK_TOKENS,
    num_decodes=3,
)
SOME_ROWS = replace(decodes(4, 2), logit_rows=np.array([3, 1], dtype=np.int32))
SHAPES = [(3, 4), (1, 2), (6, 1), (2, 4), (5, 3)]
"""The numbers of rows and of columns."""


@pytest.mark.parametrize("device_name", ["cpu", CUDA])
@torch.inference_mode()
def test_a_captured_step_computes_what_the_model_does(device_name: str) -> None:
    device = torch.device(device_name)
    model = tiny_model(device)
    capture = CudaCapture(device) if device.type == "cuda" else FakeCapture()
    graphed, ours, theirs = captured(model, capture)
    steps = [decodes(*shape, seed) for seed, shape in enumerate(SHAPES)]
    assert DRAFTS.has_runs
    for step in (*steps, DRAFTS, SOME_ROWS):
        logits = graphed.forward(step, ours)
        wanted = model.forward(step, theirs)
        assert logits.shape == wanted.shape
        assert torch.allclose(logits, wanted, atol=1e-4)
    for written, expected in zip(ours.layers, theirs.layers, strict=True):
        before_scratch = slice(0, ours.scratch_slot)
        found = written.entries[before_scratch]
        assert torch.allclose(found, expected.entries[before_scratch], atol=1e-4)
    if isinstance(capture, FakeCapture):
        assert len(capture.replayed) == len(steps) + 2


@torch.inference_mode()
def test_rows_that_fill_a_step_up_change_nothing_whatever_they_read() -> None:
    model = tiny_model(CPU)
    graphed, ours, theirs = captured(model)
    step = decodes(3, 4)
    used = step.block_table.flatten()
    others = [block for block in range(NUM_BLOCKS + 1) if block not in used]
    assert others
    for layer in ours.layers:
        layer.entries.view(-1, BLOCK_TOKENS, *layer.entries.shape[1:])[others] = float("nan")
    graphed._steps._buffers.block_table.fill_(others[0])  # type: ignore[union-attr]
    assert torch.allclose(graphed.forward(step, ours), model.forward(step, theirs), atol=1e-4)


@torch.inference_mode()
def test_hidden_rows_of_a_captured_step_outlive_the_next_one() -> None:
    config = replace(CONFIG, has_predictor=True)
    model, capture = tiny_model(CPU, config=config), FakeCapture()
    graphed, ours, theirs = captured(model, capture)
    steps = decodes(3, 4), decodes(5, 3, seed=1)
    found = [graphed.forward_with_hidden(step, ours)[1] for step in steps]
    wanted = [model.forward_with_hidden(step, theirs)[1] for step in steps]
    assert len(capture.replayed) == 2
    assert all(torch.allclose(*pair, atol=1e-4) for pair in zip(found, wanted, strict=True))


@torch.inference_mode()
def test_the_smallest_step_that_holds_the_rows_runs_and_the_model_where_none_does() -> None:
    capture = FakeCapture()
    graphed = GraphedDecoder(tiny_model(CPU), capture)
    kv, other = (graphed.new_kv(NUM_BLOCKS, BLOCK_TOKENS) for _ in range(2))
    graphed.forward(decodes(2, 1), kv)
    assert graphed.capture_in_words == "no CUDA graphs yet"
    graphed.capture(kv, max_rows=6, context_tokens=16)
    assert graphed.capture_in_words == "decode steps of up to 6 rows in CUDA graphs"
    for num_rows in (1, 2, 3, 4, 5, 6):
        graphed.forward(decodes(num_rows, 1), kv)
    largest_first, replayed = [6, 4, 2, 1], list(capture.replayed)
    assert [largest_first[index] for index in replayed] == [1, 2, 4, 4, 6, 6]
    table = block_table_of([[3, 1], [4]])
    with_prompt = StepInput.of_queries(
        [5, 6, 7], [9, 0], [1, 2], table, BLOCK_TOKENS, num_decodes=1, logit_rows=[0, 2]
    )
    for step, storage, num_logits in (
        (with_prompt, kv, 2),
        (decodes(7, 1), kv, 7),
        (decodes(1, 3), kv, 1),
        (decodes(1, 1), other, 1),
    ):
        logits = graphed.forward(step, storage)
        assert logits.shape == (num_logits, CONFIG.vocab_size)
    assert capture.replayed == replayed


@torch.inference_mode()
def test_a_capture_that_fails_is_reported_and_leaves_the_model_working() -> None:
    def refuse(forward: Callable[[], None]) -> Replay:
        forward()
        raise RuntimeError("operation not permitted when stream is capturing")

    graphed, kv, _ = captured(capture=refuse, max_rows=2, context_tokens=16)
    assert graphed.forward(decodes(2, 1), kv).shape == (2, CONFIG.vocab_size)
    assert graphed.capture_in_words == "no CUDA graphs (RuntimeError)"
    assert tiny_model(CPU).capture_in_words == ""


def test_few_rows_are_wasted() -> None:
    small = [1, 2, 4, 8, 16, 24, 32]
    for max_rows, expected in ((1, [1]), (3, [1, 2, 3]), (32, small), (33, [*small, 33])):
        assert row_buckets(max_rows) == expected
    buckets = row_buckets(256)
    assert len(buckets) == 19
    for smaller, larger in pairwise(buckets):
        assert larger - smaller <= max(8, larger / 5)
