"""Sampling: each parameter alone; a row does not depend on its batch mates; what a step asks of a
device, and penalties against vLLM's definition written out in numpy."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from inference.engine.drawing import TOP_CANDIDATES
from inference.engine.logits_processors import UsedTokens
from inference.engine.sampler import RandomStream, Sampler
from inference.engine.sequence import Sequence
from inference.models.step_input import HostCopy
from tests.cases import each_case
from tests.inference.engine.conftest import sequence_of, submit, tokens_of

VOCAB_SIZE = 50


def random_logits(num_rows: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, VOCAB_SIZE, generator=generator) * 3


def pick(sequence: Sequence, logits: torch.Tensor) -> int:
    return Sampler().sample([sequence], logits.unsqueeze(0)).token_ids[0]


def test_draws_follow_the_distribution_and_belong_to_their_places() -> None:
    """Whatever the batch mates, and however often a step is tried."""
    logits = torch.full((1, VOCAB_SIZE), -math.inf)
    logits[0, [3, 4, 5]] = torch.tensor([0.5, 0.3, 0.2]).log()
    seeded = {"seed": 42, "temperature": 1.0, "top_p": 0.95}

    def draw(*mates: dict[str, Any], num_tokens: int = 20, num_attempts: int = 1) -> list[int]:
        sampler, sequence = Sampler(), sequence_of([1], **seeded)
        batch = [*(sequence_of([1], **mate) for mate in mates), sequence]
        rows = torch.cat([random_logits(len(mates), seed=9), logits])
        for _ in range(num_tokens):
            for _ in range(num_attempts):
                token_ids = sampler.sample(batch, rows).token_ids
            for one, token_id in zip(batch, token_ids, strict=True):
                one.token_ids.append(token_id)
        return sequence.token_ids[1:]

    drawn = draw(num_tokens=1000)
    shares = [Counter(drawn)[n] / 1000 for n in (3, 4, 5)]
    assert shares == pytest.approx([0.5, 0.3, 0.2], abs=0.05) and set(drawn) == {3, 4, 5}
    assert draw() == draw(num_attempts=3) == drawn[:20]
    assert draw({"seed": 7}, {"top_k": 40}, {"min_p": 0.3}) == drawn[:20]


def test_a_repetition_window_looks_at_the_last_tokens() -> None:
    used = UsedTokens(sequence_of([10, 11], [12, 13], repetition_window=3))
    used.add(10)
    assert list(used.token_ids) == [10, 11, 12, 13]
    assert list(used.is_repeated) == [True, False, True, True]
    for token_id in range(100, 300):
        used.add(token_id)
    assert set(used.token_ids[used.is_repeated]) == {297, 298, 299}


@each_case(
    ("prompt", "output", "params", "expected"),
    [
        ([10], [11, 12], {"repetition_penalty": 1.2, "repetition_window": 2}, 10),
        ([11], [12, 10], {"repetition_penalty": 1.2, "repetition_window": 2}, 11),
        ([10], [11], {"repetition_penalty": 1.2}, 12),  # of prompt and output
        ([10], [], {"presence_penalty": 2.0}, 10),  # of the output alone
        ([1], [10], {"presence_penalty": 0.15}, 11),
        ([1], [10, 10, 11], {"frequency_penalty": 0.15}, 12),
        ([1], [], {"logit_bias": {10: -100.0}}, 11),
        ([1], [], {"logit_bias": {12: 5.0}}, 12),
        ([1], [4], {"min_tokens": 2, "stop_token_ids": [10]}, 11),
        ([1], [4, 4], {"min_tokens": 2, "stop_token_ids": [10]}, 10),
    ],
)
def test_a_token_is_passed_over(
    prompt: list[int], output: list[int], params: dict[str, Any], expected: int
) -> None:
    logits = torch.zeros(VOCAB_SIZE)
    logits[[10, 11, 12]] = torch.tensor([4.0, 3.9, 3.8])
    assert pick(sequence_of(prompt, output, temperature=0.0, **params), logits) == expected


def test_logprobs_are_of_the_raw_distribution() -> None:
    logits = random_logits(3)
    rows = [
        sequence_of([1], temperature=0.0),
        sequence_of([1], temperature=0.5, top_logprobs=3, seed=1),
        sequence_of([1], top_logprobs=0),
    ]
    sampled = Sampler().sample(rows, logits)
    expected = logits[1].log_softmax(-1)
    assert set(sampled.logprobs) == {1, 2} and sampled.logprobs[2].top == []
    assert sampled.token_ids[0] == int(logits[0].argmax())
    found = sampled.logprobs[1]
    assert found.token_id == sampled.token_ids[1]
    assert found.logprob == pytest.approx(float(expected[found.token_id]), abs=1e-5)
    assert [token for token, _ in found.top] == expected.topk(3).indices.tolist()


@each_case("temperature", [0.0, 1e-320, 1e-50, 1e-39, 1e-30, 1e-6])
def test_temperatures_that_scores_cannot_be_divided_by_are_greedy(temperature: float) -> None:
    logits = torch.linspace(-30, 30, VOCAB_SIZE).unsqueeze(0)
    params = {"temperature": temperature, "seed": 1}
    for sequence in (sequence_of([1], **params), sequence_of([1], **params, logit_bias={3: 1.0})):
        sampled = Sampler().sample([sequence], logits)
        assert (sampled.token_ids, sampled.ends) == ([VOCAB_SIZE - 1], {})


def test_rows_that_are_not_numbers_fail_alone() -> None:
    logits = random_logits(3)
    logits[1, 5] = math.nan
    logits[1, 7:9] = math.inf
    rows = [sequence_of([1], temperature=0.0), sequence_of([1]), sequence_of([1], top_logprobs=1)]
    sampled = Sampler().sample(rows, logits)
    assert [*sampled.ends] == [1] and sampled.num_failed == 1
    assert sampled.ends[1].code == "numerical_error"
    assert "3 logits are not finite" in sampled.ends[1].message
    assert set(sampled.logprobs) == {2}


@each_case("seed", [0, 1, -1, 42, 2**63 - 1, -(2**63)])
def test_a_seeds_stream(seed: int) -> None:
    def drawn(seed: int) -> list[float]:
        stream = RandomStream(seed)
        return [stream.uniform(place) for place in range(4)]

    assert drawn(seed) == drawn(seed)
    assert seed in (0, -(2**63)) or drawn(-seed) != drawn(seed)
    stream = RandomStream(seed)
    first, second = stream.uniform(0), stream.uniform(1)
    assert [stream.uniform(0), stream.uniform(1), stream.uniform(1)] == [first, second, second]


def test_a_step_reads_once_and_a_nucleus_may_be_wider_than_the_candidates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[int] = []
    """How many tensors each wait reads."""
    read = HostCopy.values
    monkeypatch.setattr(
        HostCopy, "values", lambda copy: (waits.append(len(read(copy))), read(copy))[1]
    )
    rows = [
        sequence_of([1, 2], temperature=0.0),
        sequence_of([1, 2], temperature=0.8, top_p=0.9, top_k=5, min_p=0.1, seed=1),
        sequence_of([1, 2], [3], temperature=0.0, frequency_penalty=1.0),
        sequence_of([1], temperature=0.0, logit_bias={5: 100.0}),
        sequence_of([1], temperature=0.0, min_tokens=4, stop_token_ids=[6]),
    ]
    sampled = Sampler().sample(rows, torch.zeros(len(rows), VOCAB_SIZE))
    assert sampled.token_ids[3] == 5
    greedy = [sequence_of([1], temperature=0.0) for _ in range(2)]
    Sampler().sample(greedy, torch.eye(2, VOCAB_SIZE))
    assert waits == [3, 3], "greedy rows choose nothing"

    vocab_size = 8 * TOP_CANDIDATES
    sampler, seen = Sampler(), []
    for seed in range(20):
        flat, sharp = (sequence_of([1], top_p=top_p, seed=seed) for top_p in (0.99, 0.5))
        logits = torch.linspace(0.01, 0.0, vocab_size).repeat(2, 1)
        logits[1, 7] = 50.0
        token_ids = sampler.sample([flat, sharp], logits).token_ids
        assert token_ids[1] == 7
        seen.append(token_ids[0])
    assert max(seen) > vocab_size // 2


PENALTIES: dict[str, dict[str, float]] = {
    "repetition": {"repetition_penalty": 1.3},
    "encouraged": {"repetition_penalty": 0.8, "presence_penalty": -0.5},
    "presence": {"presence_penalty": 1.1},
    "frequency": {"frequency_penalty": 0.6},
    "all": {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.4},
    "plain": {},
}


def penalized(logits: Any, prompt: list[int], output: list[int], **penalties: float) -> Any:
    """One row of logits, as ``vllm.model_executor.layers.utils.apply_penalties`` has it."""
    counts = np.bincount(output, minlength=len(logits))
    is_used = (counts > 0) | (np.bincount(prompt, minlength=len(logits)) > 0)
    factors = np.where(is_used, penalties.get("repetition_penalty", 1.0), 1.0)
    scores = np.where(logits > 0, logits / factors, logits * factors)
    presence = penalties.get("presence_penalty", 0.0) * (counts > 0)
    return scores - penalties.get("frequency_penalty", 0.0) * counts - presence


def test_penalties_are_those_of_vllm(llama: Any) -> None:
    """Each token has the largest penalised score, but for rounding."""
    prompts = {name: random.Random(name).choices(range(100), k=20) for name in PENALTIES}
    engine = llama.engine(8192, prefill_tokens=64)
    for name, penalties in PENALTIES.items():
        submit(engine, name, prompts[name], 100, **penalties)
    for name, answer in tokens_of(engine).items():
        assert len(answer) == 100
        with torch.inference_mode():
            logits = llama.reference(torch.tensor([prompts[name] + answer])).logits[0].numpy()
        for place, token_id in enumerate(answer):
            row = logits[len(prompts[name]) + place - 1]
            scores = penalized(row, prompts[name], answer[:place], **PENALTIES[name])
            assert scores[token_id] >= scores.max() - 1e-3, f"token {place}"
