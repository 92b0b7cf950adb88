"""What a decode row's logits depend on: its own sequence, and on a card how many rows the step has
(rounded up to a captured one's). Never what the other rows hold.
The engine over Triton's attention and captured steps answers what it answers without them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from inference.engine.drawing import Drawer, TorchDrawer, TritonDrawer
from inference.engine.load.build import build_engine
from inference.engine.waiting_queue import SchedulerLimits
from inference.models.backend import AnyModel
from inference.models.cuda import setup
from inference.models.cuda.trials import CudaCapture
from inference.models.graphed import GraphedDecoder, Replay, row_buckets
from inference.models.kv_format import KVFormat
from inference.models.paged_kv import PagedKV
from inference.models.step_input import StepInput
from inference.protocol.engine import SamplingParams, SubmitSequence
from tests.cases import each_case
from tests.inference.models.cuda.tiny import CONFIG, tiny_model
from tests.inference.models.steps import FakeCapture, step_of

BLOCK_TOKENS, NUM_BLOCKS, NUM_COLUMNS = 8, 40, 3
MAX_ROWS = 12
WIDE = replace(CONFIG, hidden_size=512, intermediate_size=1024, head_dim=32, num_heads=16)
"""Wide enough for cuBLAS to have a choice."""


def kv_of(model: GraphedDecoder, seed: int) -> PagedKV:
    """Block 0 to 2 hold the same whatever the seed; they are the watched row's."""
    kv, own = model.new_kv(NUM_BLOCKS, BLOCK_TOKENS), NUM_COLUMNS * BLOCK_TOKENS
    for index, layer in enumerate(kv.layers):
        for of, part in ((index, slice(own)), (100 * seed + index, slice(own, None))):
            generator = torch.Generator().manual_seed(of)
            shape = layer.entries[part].shape
            layer.entries[part] = torch.randn(shape, generator=generator).to(layer.entries)
    return kv


def rows_of(num_rows: int, seed: int) -> StepInput:
    """The watched one first, at position 20 of its own blocks; the others anywhere in theirs."""
    random = np.random.default_rng(seed)
    token_ids = [7, *random.integers(0, CONFIG.vocab_size, num_rows - 1).tolist()]
    positions = [20, *random.integers(0, NUM_COLUMNS * BLOCK_TOKENS, num_rows - 1).tolist()]
    blocks = np.arange(num_rows * NUM_COLUMNS, dtype=np.int32).reshape(num_rows, NUM_COLUMNS)
    return StepInput.of_decodes(token_ids, positions, blocks, BLOCK_TOKENS)


def decodes(num_rows: int, num_columns: int, seed: int = 0) -> StepInput:
    """Rows of different lengths, each in blocks of its own as far as they reach; the first as far
    as it may."""
    generator = torch.Generator().manual_seed(seed)
    positions = torch.randint(0, num_columns * BLOCK_TOKENS, (num_rows,), generator=generator)
    positions[0] = num_columns * BLOCK_TOKENS - 1
    blocks = torch.randperm(NUM_BLOCKS, generator=generator)[: num_rows * num_columns]
    token_ids = torch.randint(0, CONFIG.vocab_size, (num_rows,), generator=generator).tolist()
    table = blocks.view(num_rows, num_columns).int().numpy()
    return StepInput.of_decodes(token_ids, positions.tolist(), table, BLOCK_TOKENS)


DRAFTS = step_of(
    *(([5, 6, 7], 17, [3, 1, 7]), ([8], 2, [4]), ([9, 10], 11, [2, 9])),
    block_tokens=BLOCK_TOKENS,
    num_decodes=3,
)
SOME_ROWS = replace(decodes(4, 2), logit_rows=np.array([3, 1], dtype=np.int32))
SHAPES = [(3, 4), (1, 2), (6, 1), (2, 4), (5, 3)]
"""The numbers of rows and of columns."""


@pytest.mark.gpu
@torch.inference_mode()
def test_a_captured_step_computes_what_the_model_does(device: torch.device) -> None:
    model = tiny_model(device, config=replace(CONFIG, has_predictor=True))
    capture = CudaCapture(device) if device.type == "cuda" else FakeCapture()
    graphed = GraphedDecoder(model, capture)
    ours, theirs = (kv_of(graphed, 5) for _ in range(2))
    graphed.capture(ours, max_rows=6, context_tokens=30)
    for again, fresh in zip(ours.layers, theirs.layers, strict=True):
        again.entries.copy_(fresh.entries)  # capturing wrote to the first blocks
    found = []
    steps = [*(decodes(*shape, seed) for seed, shape in enumerate(SHAPES)), DRAFTS, SOME_ROWS]
    assert DRAFTS.has_runs
    for step in steps:
        logits, hidden = graphed.forward_with_hidden(step, ours)
        wanted, wanted_hidden = model.forward_with_hidden(step, theirs)
        assert logits.shape == wanted.shape
        assert torch.allclose(logits, wanted, atol=1e-4)
        found.append((hidden, wanted_hidden))
    assert all(torch.allclose(*pair, atol=1e-4) for pair in found), "they outlive later steps"
    before_scratch = slice(0, ours.scratch_slot)
    for written, expected in zip(ours.layers, theirs.layers, strict=True):
        kept = expected.entries[before_scratch]
        assert torch.allclose(written.entries[before_scratch], kept, atol=1e-4)
    if isinstance(capture, FakeCapture):
        assert len(capture.replayed) == len(steps)
    # Rows that fill a step up change nothing, whatever they read.
    step = decodes(3, 4)
    others = [n for n in range(NUM_BLOCKS + 1) if n not in step.block_table.flatten()]
    for layer in ours.layers:
        layer.entries.view(-1, BLOCK_TOKENS, *layer.entries.shape[1:])[others] = float("nan")
    graphed._steps._buffers.block_table.fill_(others[0])  # type: ignore[union-attr]
    assert torch.allclose(graphed.forward(step, ours), model.forward(step, theirs), atol=1e-4)


@torch.inference_mode()
def test_the_smallest_step_that_holds_the_rows_runs_and_the_model_where_none_does() -> None:
    cpu, capture = torch.device("cpu"), FakeCapture()
    graphed = GraphedDecoder(tiny_model(cpu), capture)
    kv, other = (graphed.new_kv(NUM_BLOCKS, BLOCK_TOKENS) for _ in range(2))
    graphed.forward(decodes(2, 1), kv)
    assert graphed.capture_in_words == "no CUDA graphs yet"
    graphed.capture(kv, max_rows=6, context_tokens=16)
    assert graphed.capture_in_words == "decode steps of up to 6 rows in CUDA graphs"
    for num_rows in (1, 2, 3, 4, 5, 6):
        graphed.forward(decodes(num_rows, 1), kv)
    largest_first, replayed = [6, 4, 2, 1], list(capture.replayed)
    assert [largest_first[index] for index in replayed] == [1, 2, 4, 4, 6, 6]
    queries, size = (([5], 9, [3, 1]), ([6, 7], 0, [4])), {"block_tokens": BLOCK_TOKENS}
    for step, storage, num_logits in (
        (step_of(*queries, **size, num_decodes=1, logit_rows=[0, 2]), kv, 2),
        (decodes(7, 1), kv, 7),
        (decodes(1, 3), kv, 1),
        (decodes(1, 1), other, 1),
    ):
        assert graphed.forward(step, storage).shape == (num_logits, CONFIG.vocab_size)
    assert capture.replayed == replayed

    def refuse(forward: Callable[[], None]) -> Replay:
        forward()
        raise RuntimeError("operation not permitted when stream is capturing")

    graphed = GraphedDecoder(tiny_model(cpu), refuse)
    graphed.capture(kv, max_rows=2, context_tokens=16)
    assert graphed.forward(decodes(2, 1), kv).shape == (2, CONFIG.vocab_size)
    assert graphed.capture_in_words == "no CUDA graphs (RuntimeError)"
    assert tiny_model(cpu).capture_in_words == ""


def test_few_rows_are_wasted() -> None:
    small = [1, 2, 4, 8, 16, 24, 32]
    for max_rows, expected in ((1, [1]), (3, [1, 2, 3]), (32, small), (33, [*small, 33])):
        assert row_buckets(max_rows) == expected
    buckets = row_buckets(256)
    assert len(buckets) == 19
    for smaller, larger in pairwise(buckets):
        assert larger - smaller <= max(8, larger / 5)


@pytest.mark.gpu
@each_case("sizes", [(9, 10, 12), (5, 6, 8), (3, 4), (1, 1)])
@torch.inference_mode()
def test_a_decode_row_is_the_same_in_every_step_of_one_size(
    device: torch.device, sizes: tuple[int, ...]
) -> None:
    capture = CudaCapture(device) if device.type == "cuda" else FakeCapture()
    graphed = GraphedDecoder(tiny_model(device, "fp32", WIDE), capture)
    size = {next(b for b in row_buckets(MAX_ROWS) if b >= num_rows) for num_rows in sizes}
    assert len(size) == 1, "one captured step for all of them"
    found = []
    for seed, num_rows in enumerate(sizes):
        kv = kv_of(graphed, seed)
        graphed.capture(kv, max_rows=MAX_ROWS, context_tokens=NUM_COLUMNS * BLOCK_TOKENS)
        for again, fresh in zip(kv.layers, kv_of(graphed, seed).layers, strict=True):
            again.entries.copy_(fresh.entries)  # capturing wrote to the first blocks
        found.append(graphed.forward(rows_of(num_rows, seed), kv)[0].clone())
    assert all(torch.equal(logits, found[0]) for logits in found[1:])
    if device.type == "cuda" and sizes == (1, 1):  # between sizes only rounding differs
        others = [graphed.forward(rows_of(n, 0), kv_of(graphed, 0))[0] for n in (2, 4, 8, 12)]
        least = 1e-3 * float(found[0].abs().max())
        assert all(float((logits - found[0]).abs().max()) < least for logits in others)


FEW_HEADS = replace(CONFIG, num_heads=2, num_kv_heads=1)
"""An interpreted kernel takes milliseconds for each head of each row."""
CONTEXT_TOKENS = 64
NUM_TOKENS = 3
PROMPTS = {"a": [3, 1, 4, 1, 5], "b": [9, 2], "c": [(7 * i) % CONFIG.vocab_size for i in range(21)]}


def answers(model: AnyModel, drawer: Drawer, *, run_ahead: bool = False) -> dict[str, list[int]]:
    """Two of them are drawn."""
    engine = build_engine(
        model,
        context_tokens=CONTEXT_TOKENS,
        num_kv_blocks=24,
        block_tokens=8,
        scheduler_limits=SchedulerLimits(max_running=4, prefill_tokens_per_step=16),
        drawer=drawer,
        run_ahead=run_ahead,
        check_when_idle=True,
    )
    for index, (sequence_id, prompt) in enumerate(PROMPTS.items()):
        own = {"max_tokens": NUM_TOKENS + index, "seed": index}
        params = SamplingParams(temperature=0.0 if index == 0 else 0.9, **own)
        given = {"sequence_id": sequence_id, "token_ids": list(prompt), "params": params}
        engine.submit(SubmitSequence(**given))
    found: dict[str, list[int]] = {sequence_id: [] for sequence_id in PROMPTS}
    while engine.has_work:
        for output in engine.step().outputs:
            found[output.sequence_id] += output.token_ids
    return found


@pytest.mark.slow
@each_case("run_ahead", [False, True])
@each_case("kv_format", ["fp32", "int8"])
def test_the_same_answers(device: torch.device, kv_format: KVFormat, run_ahead: bool) -> None:
    wanted = answers(tiny_model(device, kv_format, FEW_HEADS), TorchDrawer())
    graphed, _ = setup.accelerate(tiny_model(device, kv_format, FEW_HEADS))
    if device.type != "cuda":
        graphed._record = FakeCapture()
    assert answers(graphed, TritonDrawer(), run_ahead=run_ahead) == wanted
    assert graphed.capture_in_words == "decode steps of up to 4 rows in CUDA graphs"
    assert [len(answer) for answer in wanted.values()] == [NUM_TOKENS + i for i in range(3)]
