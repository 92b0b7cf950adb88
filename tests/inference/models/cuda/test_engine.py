"""The engine over Triton's attention and captured steps answers what it answers without them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from inference.engine.load.build import build_engine
from inference.engine.sampling.drawing import TritonDrawer
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from inference.models.backend import AnyModel
from inference.models.cache.kv_format import KVFormat
from inference.models.cuda import setup
from inference.models.graphed import GraphedDecoder
from inference.protocol.engine import SequenceStep, SubmitSequence
from inference.protocol.sampling import SamplingParams
from tests.inference.models.cuda.tiny import CONFIG, tiny_model

FEW_HEADS = replace(CONFIG, num_heads=2, num_kv_heads=1)
"""An interpreted kernel takes milliseconds for each head of each row."""
CONTEXT_TOKENS = 64
NUM_TOKENS = 3
PROMPTS = {"a": [3, 1, 4, 1, 5], "b": [9, 2], "c": [(7 * i) % CONFIG.vocab_size for i in range(21)]}


def answers(model: AnyModel, *, run_ahead: bool = False) -> dict[str, list[int]]:
    """Returns answers by Triton's drawer, two of them drawn."""
    engine = build_engine(
        model,
        context_tokens=CONTEXT_TOKENS,
        num_kv_blocks=24,
        block_tokens=8,
        scheduler_limits=SchedulerLimits(max_running=4, prefill_tokens_per_step=16),
        drawer=TritonDrawer(model.device),
        run_ahead=run_ahead,
        check_when_idle=True,
    )
    for index, (sequence_id, prompt) in enumerate(PROMPTS.items()):
        params = SamplingParams(
            max_tokens=NUM_TOKENS + index, temperature=0.0 if index == 0 else 0.9, seed=index
        )
        engine.submit(
            SubmitSequence(sequence_id=sequence_id, token_ids=list(prompt), params=params)
        )
    found: dict[str, list[int]] = {sequence_id: [] for sequence_id in PROMPTS}
    while engine.has_work:
        for output in engine.step().outputs:
            assert isinstance(output, SequenceStep)
            found[output.sequence_id] += output.token_ids
    return found


def replay_by_calling(forward: Callable[[], None]) -> Callable[[], None]:
    forward()
    return forward


@pytest.mark.slow
@pytest.mark.parametrize("run_ahead", [False, True])
@pytest.mark.parametrize("kv_format", ["fp32", "int8"])
def test_the_same_answers(device: torch.device, kv_format: KVFormat, run_ahead: bool) -> None:
    wanted = answers(tiny_model(device, kv_format, FEW_HEADS))
    graphed, _ = setup.accelerate(tiny_model(device, kv_format, FEW_HEADS))
    assert isinstance(graphed, GraphedDecoder)
    if device.type != "cuda":
        graphed._record = replay_by_calling
    assert answers(graphed, run_ahead=run_ahead) == wanted
    assert graphed.capture_in_words == "decode steps of up to 4 rows in CUDA graphs"
    assert [len(answer) for answer in wanted.values()] == [NUM_TOKENS + i for i in range(3)]
