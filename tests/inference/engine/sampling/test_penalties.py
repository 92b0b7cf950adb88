"""Penalties on answers of hundreds of tokens, through the engine, against vLLM's definition written
out in numpy over the logits that transformers computes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from inference.engine.sampling.logits_processors import UsedTokens
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from inference.engine.sequence import Sequence
from inference.protocol.sampling import SamplingParams
from tests.cases import each_case
from tests.inference.engine.asking import submit, tokens_of

NUM_TOKENS = 100
PENALTIES: dict[str, dict[str, float]] = {
    "repetition": {"repetition_penalty": 1.3},
    "encouraged": {"repetition_penalty": 0.8, "presence_penalty": -0.5},
    "presence": {"presence_penalty": 1.1},
    "frequency": {"frequency_penalty": 0.6},
    "all": {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.4},
}
PARAMS: dict[str, dict[str, Any]] = {
    **PENALTIES,
    "drawn": {"temperature": 0.9, "seed": 7, "frequency_penalty": 0.5},
    "plain": {},
}


@each_case("num_different", [1, 64, 65, 129, 500])
@each_case("num_prompt_tokens", [1, 64, 400])
def test_counts_are_those_of_the_output(num_different: int, num_prompt_tokens: int) -> None:
    numbers = random.Random(num_different)
    prompt = numbers.choices(range(num_different), k=num_prompt_tokens)
    output = [*range(num_different), *numbers.choices(range(num_different), k=300)]
    half = len(output) // 2
    sequence = Sequence(
        "a",
        prompt,
        SamplingParams(max_tokens=1000),
        context_tokens=1000,
        arrival=1,
        deadline_s=0.0,
    )
    sequence.token_ids += output[:half]
    used = UsedTokens(sequence)
    for token_id in output[half:]:
        used.add(token_id)
    counts = dict(zip(used.token_ids.tolist(), used.output_counts.tolist(), strict=True))
    assert counts.keys() == {*prompt, *output}
    assert {t: n for t, n in counts.items() if n} == Counter(output)


def prompt_of(name: str) -> list[int]:
    return random.Random(name).choices(range(100), k=20)


def penalized(
    logits: np.ndarray[Any, np.dtype[np.float32]],
    prompt: list[int],
    output: list[int],
    *,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """One row of logits, as ``vllm.model_executor.layers.utils.apply_penalties`` has it."""
    counts = np.bincount(output, minlength=len(logits))
    is_used = (counts > 0) | (np.bincount(prompt, minlength=len(logits)) > 0)
    factors = np.where(is_used, repetition_penalty, 1.0)
    scores = np.where(logits > 0, logits / factors, logits * factors)
    return scores - frequency_penalty * counts - presence_penalty * (counts > 0)


def check_greedy(
    reference: PreTrainedModel, prompt: list[int], answer: list[int], penalties: dict[str, float]
) -> None:
    """Each token has the largest penalized score, but for rounding."""
    assert len(answer) == NUM_TOKENS
    with torch.inference_mode():
        logits = reference(torch.tensor([prompt + answer])).logits[0].numpy()
    for place, token_id in enumerate(answer):
        row = logits[len(prompt) + place - 1]
        scores = penalized(row, prompt, answer[:place], **penalties)
        assert scores[token_id] >= scores.max() - 1e-3, f"token {place}"


def test_in_a_batch_and_alone(llama: Any) -> None:
    def answers_of(names: Iterable[str], num_tokens: int = 8192) -> dict[str, list[int]]:
        engine = llama.engine(num_tokens, limits=SchedulerLimits(prefill_tokens_per_step=64))
        for name in names:
            submit(engine, name, prompt_of(name), NUM_TOKENS, **PARAMS[name])
        return tokens_of(engine)

    found = answers_of(PARAMS)
    for name in (*PENALTIES, "plain"):
        check_greedy(llama.reference, prompt_of(name), found[name], PENALTIES.get(name, {}))
    assert answers_of(["drawn"])["drawn"] == found["drawn"]
    assert answers_of(PARAMS, num_tokens=384) == found, "after preemptions"
