"""What torch's packed products cost: they read and give bfloat16. Two orders of adding up the same
float32 numbers may then round to neighbouring bfloat16 numbers, up to the logits themselves.

A product's own rows are the same to the bit in every batch; computed in float32, the same weights
keep to the bound of ``test_batch_independence``. So it is this rounding and no shared scale.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from inference.engine.load.build import build_engine
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from inference.loading.loader import OpenedModel, open_model
from inference.loading.weights.quantized_files import quantize
from inference.models.backend import AnyModel
from inference.models.layers import linear
from inference.models.layers.linear import LinearFactory
from inference.models.registry import build_model
from inference.protocol.engine import SequenceStep, SubmitSequence
from inference.protocol.load import LoadSpec
from inference.protocol.sampling import SamplingParams, TokenLogprob
from tests.cases import each_case
from tests.inference.engine.test_batch_independence import TOLERANCE
from tests.inference.models.families import tiny_hybrid as tiny
from tests.slow_cases import slow_but

PROMPT_TOKENS, NUM_TOKENS = 37, 6
ALONE: tuple[int, list[int]] = (512, [])
"""Prompt tokens of a step, and the lengths of batch mates' prompts."""
OTHERWISE: list[tuple[int, list[int]]] = [
    (512, [3, 5, 9, 17, 33, 65, 90]),
    (9, []),
    (1, []),
]
MOST_UNITS = 2
"""How many bfloat16 numbers apart the largest logit may be; seen is one."""


@each_case("bits", [4, 8])
@each_case("shape", [(64, 96), (96, 64), (512, 256)])
def test_a_row_of_a_packed_product_is_the_same_in_every_batch(
    bits: Any, shape: tuple[int, int]
) -> None:
    generator = torch.Generator().manual_seed(bits)
    factory = LinearFactory(torch.device("cpu"), torch.float32, prefill_copies=False)
    with ThreadPoolExecutor(1) as threads:
        stored = quantize(torch.randn(shape, generator=generator), bits, threads)
    product, _ = factory.linear(stored)
    rows = torch.randn(90, shape[1], generator=generator)
    alone = torch.cat([product.decode(row.unsqueeze(0)) for row in rows])
    for count in (2, 3, 8, 33, 90):
        assert torch.equal(product.decode(rows[:count]), alone[:count])


def wide(made: PreTrainedModel) -> PreTrainedModel:
    """Rows of several groups, and weights that do not amplify rounding."""
    config = copy.deepcopy(made.config)
    text = config.get_text_config()
    for name in ("hidden_size", "intermediate_size", "moe_intermediate_size"):
        if name in text.to_dict():
            setattr(text, name, 128)
    if hasattr(config, "vision_config"):
        config.vision_config.out_hidden_size = 128
    text.initializer_range = 0.05
    torch.manual_seed(3)
    return tiny.randomised(type(made)(config))


@pytest.mark.parametrize("copies", slow_but([True, False], True))
@pytest.mark.parametrize("quantization", slow_but(["q4", "q8"], "q4"))
@pytest.mark.parametrize(
    "made",
    slow_but([tiny.qwen3_next, tiny.qwen3_5], tiny.qwen3_next),
    ids=lambda made: made.__name__,
)
def test_batches_and_chunks_round_to_a_neighbour(
    made: Callable[[], PreTrainedModel],
    quantization: Any,
    copies: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not copies:
        monkeypatch.setattr(linear, "has_fast_bfloat16", lambda device: False)
    directory = tiny.save(wide(made()), tmp_path / "model")
    rounded, exact = (built(directory, quantization, dtype) for dtype in ("auto", "float32"))
    unit = 2.0 ** (math.floor(math.log2(largest_logit(rounded))) - 7)
    assert largest_difference(rounded) <= MOST_UNITS * unit + TOLERANCE
    assert largest_difference(exact) <= TOLERANCE


def built(directory: Path, quantization: Any, dtype: Any) -> AnyModel:
    spec = LoadSpec(
        job_id="1",
        model="m",
        source=f"path:{directory}",
        devices=["cpu"],
        dtype=dtype,
        quantization=quantization,
    )
    opened = open_model(spec, directory / "cache", lambda progress: None)
    assert isinstance(opened, OpenedModel)
    model = build_model(opened.config, opened.weights, tiny.CONTEXT_TOKENS)
    opened.close()
    return model


def largest_logit(model: AnyModel) -> float:
    return float(tiny.logits_of(model, prompt_of(PROMPT_TOKENS)).abs().max())


def largest_difference(model: AnyModel) -> float:
    """Returns the largest difference of a log probability, as far as the answers are the same."""
    expected = watched(model, *ALONE)
    differences = []
    for case in OTHERWISE:
        for ours, theirs in zip(watched(model, *case), expected, strict=True):
            other = dict(theirs.top)
            differences += [abs(value - other[token_id]) for token_id, value in ours.top]
            if ours.token_id != theirs.token_id:
                break
    return max(differences)


def watched(model: AnyModel, prefill_tokens: int, mates: list[int]) -> list[TokenLogprob]:
    engine = build_engine(
        model,
        context_tokens=tiny.CONTEXT_TOKENS,
        num_kv_blocks=256,
        block_tokens=tiny.BLOCK_TOKENS,
        scheduler_limits=SchedulerLimits(prefill_tokens_per_step=prefill_tokens, max_running=8),
    )
    params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, top_logprobs=tiny.VOCAB_SIZE)
    for index, length in enumerate([PROMPT_TOKENS, *mates]):
        name, prompt = str(index), prompt_of(length)
        engine.submit(SubmitSequence(sequence_id=name, token_ids=prompt, params=params))
    found: list[TokenLogprob] = []
    while engine.has_work:
        for output in engine.step().outputs:
            assert isinstance(output, SequenceStep)
            found += output.logprobs or [] if output.sequence_id == "0" else []
    return found


def prompt_of(length: int) -> list[int]:
    return random.Random(length).choices(range(tiny.VOCAB_SIZE), k=length)
