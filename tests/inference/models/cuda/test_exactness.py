"""What a decode row's logits depend on: its own sequence, and on a card how many rows the step has
(rounded up to a captured one's). Never what the other rows hold.
The engine over Triton's attention and captured steps answers what it answers without them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from inference.engine.drawing import Drawer, TorchDrawer, TritonDrawer
from inference.engine.load.build import build_engine
from inference.engine.waiting_queue import SchedulerLimits
from inference.models.backend import AnyModel
from inference.models.cuda import setup
from inference.models.cuda.trials import CudaCapture
from inference.models.graphed import GraphedDecoder, row_buckets
from inference.models.kv_format import KVFormat
from inference.models.paged_kv import PagedKV
from inference.models.step_input import StepInput
from inference.protocol.engine import SamplingParams, SequenceStep, SubmitSequence
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


@pytest.mark.gpu
@torch.inference_mode()
def test_prompt_rows_are_the_same_beside_another_of_one_length(device: torch.device) -> None:
    graphed = GraphedDecoder(tiny_model(device, "fp32", WIDE), FakeCapture())
    kv = graphed.new_kv(NUM_BLOCKS, BLOCK_TOKENS)
    found = []
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        mate = torch.randint(0, CONFIG.vocab_size, (19,), generator=generator)
        queries = (range(13), 0, range(4)), (mate.tolist(), 0, range(4, 8))
        step = step_of(*queries, block_tokens=BLOCK_TOKENS, logit_rows=[12])
        found.append(graphed.forward(step, kv)[0].clone())
    assert all(torch.equal(logits, found[0]) for logits in found[1:])


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
            assert isinstance(output, SequenceStep)
            found[output.sequence_id] += output.token_ids
    return found


@pytest.mark.slow
@each_case("run_ahead", [False, True])
@each_case("kv_format", ["fp32", "int8"])
def test_the_same_answers(device: torch.device, kv_format: KVFormat, run_ahead: bool) -> None:
    wanted = answers(tiny_model(device, kv_format, FEW_HEADS), TorchDrawer())
    graphed, _ = setup.accelerate(tiny_model(device, kv_format, FEW_HEADS))
    assert isinstance(graphed, GraphedDecoder)
    if device.type != "cuda":
        graphed._record = FakeCapture()
    assert answers(graphed, TritonDrawer(device), run_ahead=run_ahead) == wanted
    assert graphed.capture_in_words == "decode steps of up to 4 rows in CUDA graphs"
    assert [len(answer) for answer in wanted.values()] == [NUM_TOKENS + i for i in range(3)]
