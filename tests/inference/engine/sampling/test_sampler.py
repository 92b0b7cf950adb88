"""Sampling: each parameter alone, and that a row's token does not depend on its batch mates."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.engine.sampling.drawing import filter_probabilities
from inference.engine.sampling.logits_processors import UsedTokens
from inference.engine.sampling.sampler import RandomStream, Sampler
from inference.engine.sequence import Sequence
from inference.protocol.sampling import SamplingParams
from tests.cases import each_case
from tests.inference.engine.asking import sequence_of

VOCAB_SIZE = 50


def random_logits(num_rows: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, VOCAB_SIZE, generator=generator) * 3


def pick(sequence: Sequence, logits: torch.Tensor) -> int:
    return Sampler(VOCAB_SIZE).sample([sequence], logits.unsqueeze(0)).token_ids[0]


def test_greedy_is_the_largest() -> None:
    logits = random_logits(3)
    rows = [sequence_of([1], temperature=0.0) for _ in range(3)]
    assert Sampler(VOCAB_SIZE).sample(rows, logits).token_ids == logits.argmax(-1).tolist()


def test_top_k_one_is_the_largest() -> None:
    logits = random_logits(1)[0]
    assert pick(sequence_of([1], top_k=1), logits) == int(logits.argmax())


@each_case(
    ("probabilities", "filters", "kept"),
    [
        ([0.5, 0.3, 0.15, 0.05], {"top_p": 0.8}, [0, 1]),
        ([0.5, 0.3, 0.15, 0.05], {"top_p": 0.81}, [0, 1, 2]),
        # Of what top_k left: 0.4 / 0.7 = 0.571, the first token alone reaches it.
        ([0.4, 0.3, 0.2, 0.1], {"top_k": 2, "top_p": 0.57}, [0]),
        ([0.5, 0.3, 0.15, 0.05], {"min_p": 0.4}, [0, 1]),
    ],
)
def test_filters(probabilities: list[float], filters: dict[str, Any], kept: list[int]) -> None:
    params = [SamplingParams(max_tokens=1, **filters)]
    found = filter_probabilities(torch.tensor([probabilities]), params)
    assert found.nonzero()[:, 1].tolist() == kept


def test_nucleus_wider_than_the_first_candidates() -> None:
    probabilities = torch.full((1, 5000), 1 / 5000)
    probabilities[0, :2500] *= 1.5
    probabilities[0, 2500:] *= 0.5
    kept = filter_probabilities(probabilities, [SamplingParams(max_tokens=1, top_p=0.7)])
    assert int((kept > 0).sum()) == 2500


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    top_k=st.integers(0, 60),
    top_p=st.floats(0.05, 0.999) | st.just(1.0),
    min_p=st.floats(0.0, 0.9),
)
def test_filters_agree_with_sorting(seed: int, top_k: int, top_p: float, min_p: float) -> None:
    probabilities = random_logits(1, seed).softmax(-1).double()[0]
    params = [SamplingParams(max_tokens=1, top_k=top_k, top_p=top_p, min_p=min_p)]
    kept = set(filter_probabilities(probabilities.float()[None], params).nonzero()[:, 1].tolist())
    order = probabilities.argsort(descending=True).tolist()[: top_k or VOCAB_SIZE]
    total = float(probabilities[order].sum())
    expected, mass = [], 0.0
    for token in order:
        if expected and mass >= top_p * total - 1e-6 and top_p < 1:
            break
        expected.append(token)
        mass += float(probabilities[token])
    largest = float(probabilities[order[0]])
    expected_set = {t for t in expected if float(probabilities[t]) >= min_p * largest}
    # A token whose mass ends within rounding of top_p may fall on either side.
    assert len(kept ^ expected_set) <= 1
    assert order[0] in kept


def draw_next(sampler: Sampler, batch: list[Sequence], rows: torch.Tensor) -> int:
    """The last sequence's next token, which it then has."""
    token_ids = sampler.sample(batch, rows).token_ids
    for sequence, token_id in zip(batch, token_ids, strict=True):
        sequence.token_ids.append(token_id)
    return token_ids[-1]


def test_a_draw_belongs_to_its_place_in_the_output() -> None:
    logits, sampler, again = torch.zeros(1, VOCAB_SIZE), Sampler(VOCAB_SIZE), Sampler(VOCAB_SIZE)
    sequence, other = sequence_of([1], seed=5), sequence_of([1], seed=5)
    undisturbed = [draw_next(again, [other], logits) for _ in range(8)]
    drawn = []
    for _ in range(8):
        for _ in range(3):
            attempt = sampler.sample([sequence], logits).token_ids
        sequence.token_ids += attempt
        drawn += attempt
    assert drawn == undisturbed
    assert len(set(drawn)) > 1


def test_draws_follow_the_distribution() -> None:
    logits = torch.full((VOCAB_SIZE,), -math.inf)
    logits[[3, 4, 5]] = torch.tensor([0.5, 0.3, 0.2]).log()
    sampler, sequence = Sampler(VOCAB_SIZE), sequence_of([1], seed=1)
    drawn = Counter(draw_next(sampler, [sequence], logits.unsqueeze(0)) for _ in range(1000))
    assert set(drawn) == {3, 4, 5}
    for token, probability in ((3, 0.5), (4, 0.3), (5, 0.2)):
        assert abs(drawn[token] / 1000 - probability) < 0.05


def test_same_seed_same_tokens_whatever_the_batch_mates() -> None:
    logits = random_logits(4)
    seeded = {"seed": 42, "temperature": 0.9, "top_p": 0.95}

    def draw(mates: list[Sequence], steps: int = 20) -> list[int]:
        sampler, sequence = Sampler(VOCAB_SIZE), sequence_of([1], **seeded)
        batch = [*mates, sequence]
        rows = torch.cat([random_logits(len(mates), seed=9), logits[:1]]) if mates else logits[:1]
        return [draw_next(sampler, batch, rows) for _ in range(steps)]

    alone = draw([])
    assert len(set(alone)) > 1
    assert draw([]) == alone
    assert (
        draw([sequence_of([1], seed=7), sequence_of([1], top_k=40), sequence_of([1], min_p=0.3)])
        == alone
    )


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


def test_penalties_count_what_is_sampled() -> None:
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, [10, 11]] = torch.tensor([4.0, 3.5])
    sampler = Sampler(VOCAB_SIZE)
    sequence = sequence_of([1], temperature=0.0, frequency_penalty=0.3)
    picked = []
    for _ in range(4):
        picked += sampler.sample([sequence], logits).token_ids
        sequence.token_ids.append(picked[-1])
    assert picked == [10, 10, 11, 10]


def test_logit_bias() -> None:
    logits = random_logits(1)[0]
    assert pick(sequence_of([1], temperature=0.0, logit_bias={17: 100.0}), logits) == 17
    best = int(logits.argmax())
    assert pick(sequence_of([1], temperature=0.0, logit_bias={best: -100.0}), logits) != best


def test_logprobs_are_of_the_raw_distribution() -> None:
    logits = random_logits(2)
    rows = [
        sequence_of([1], temperature=0.0),
        sequence_of([1], temperature=0.5, top_logprobs=3, seed=1),
    ]
    sampled = Sampler(VOCAB_SIZE).sample(rows, logits)
    expected = logits[1].log_softmax(-1)
    assert set(sampled.logprobs) == {1}
    found = sampled.logprobs[1]
    assert found.token_id == sampled.token_ids[1]
    assert found.logprob == pytest.approx(float(expected[found.token_id]), abs=1e-5)
    assert [token for token, _ in found.top] == expected.topk(3).indices.tolist()


def test_logprobs_of_the_sampled_token_only() -> None:
    sampled = Sampler(VOCAB_SIZE).sample([sequence_of([1], top_logprobs=0)], random_logits(1))
    assert sampled.logprobs[0].top == []


@each_case("temperature", [0.0, 1e-320, 1e-50, 1e-39, 1e-30, 1e-6])
def test_temperatures_that_scores_cannot_be_divided_by_are_greedy(temperature: float) -> None:
    logits = torch.linspace(-30, 30, VOCAB_SIZE).unsqueeze(0)
    params = {"temperature": temperature, "seed": 1}
    for sequence in (sequence_of([1], **params), sequence_of([1], **params, logit_bias={3: 1.0})):
        sampled = Sampler(VOCAB_SIZE).sample([sequence], logits)
        assert (sampled.token_ids, sampled.failed) == ([VOCAB_SIZE - 1], {})


def test_rows_that_are_not_numbers_fail_alone() -> None:
    logits = random_logits(3)
    logits[1, 5] = math.nan
    logits[1, 7:9] = math.inf
    rows = [sequence_of([1], temperature=0.0), sequence_of([1]), sequence_of([1], top_logprobs=1)]
    sampled = Sampler(VOCAB_SIZE).sample(rows, logits)
    assert sampled.failed == {1: 3}
    code, message = sampled.failure(1) or ("", "")
    assert code == "numerical_error" and "3 logits are not finite" in message
    assert set(sampled.logprobs) == {2}


def drawn(seed: int) -> list[float]:
    stream = RandomStream(seed)
    return [stream.uniform(place) for place in range(4)]


@each_case("seed", [0, 1, -1, 2**63 - 1, -(2**63)])
def test_a_seed_draws_the_same_again(seed: int) -> None:
    assert drawn(seed) == drawn(seed)


@each_case("seed", [1, 42, 2**63 - 1])
def test_a_negative_seed_is_another_than_its_absolute_value(seed: int) -> None:
    assert drawn(-seed) != drawn(seed)


def test_the_newest_place_and_that_before_are_drawn_again() -> None:
    stream = RandomStream(7)
    first, second = stream.uniform(0), stream.uniform(1)
    assert [stream.uniform(0), stream.uniform(1), stream.uniform(1)] == [first, second, second]
