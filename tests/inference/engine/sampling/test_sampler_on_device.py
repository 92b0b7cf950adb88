"""What the sampler asks of a device: one wait a step, and every row's parameters at once."""

from __future__ import annotations

import random

import pytest
import torch

from inference.engine.sampling.drawing import TOP_CANDIDATES
from inference.engine.sampling.logits_processors import TokenCounts, add_bias, forbid_early_stops
from inference.engine.sampling.sampler import Sampler
from inference.engine.sequence import Sequence
from inference.models.step_input import HostCopy
from tests.inference.engine.asking import sequence_of

VOCAB_SIZE = 40


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tensors each wait reads."""
    counted: list[int] = []

    read = HostCopy.values

    def counting(self: HostCopy) -> list[list[int]]:
        values = read(self)
        counted.append(len(values))
        return values

    monkeypatch.setattr(HostCopy, "values", counting)
    return counted


def test_a_step_waits_once_whatever_its_rows_ask_for(waits: list[int]) -> None:
    rows = [
        sequence_of([1, 2], name="greedy", temperature=0.0),
        sequence_of([1, 2], name="drawn", temperature=0.8, top_p=0.9, top_k=5, min_p=0.1, seed=1),
        sequence_of([1, 2], [3], name="penalised", temperature=0.0, frequency_penalty=1.0),
        sequence_of([1], name="biased", temperature=0.0, logit_bias={5: 100.0}),
        sequence_of([1], name="early", temperature=0.0, min_tokens=4, stop_token_ids=[6]),
    ]
    sampled = Sampler(VOCAB_SIZE).sample(rows, torch.zeros(len(rows), VOCAB_SIZE))
    assert sampled.token_ids[3] == 5
    assert waits == [4]


def test_greedy_rows_choose_nothing(waits: list[int]) -> None:
    rows = [sequence_of([1], name=name, temperature=0.0) for name in "ab"]
    Sampler(VOCAB_SIZE).sample(rows, torch.eye(2, VOCAB_SIZE))
    assert waits == [2]


def test_a_nucleus_wider_than_the_candidates_costs_a_second_wait(waits: list[int]) -> None:
    vocab_size = 8 * TOP_CANDIDATES
    sampler, seen = Sampler(vocab_size), []
    for seed in range(20):
        flat = sequence_of([1], name=f"flat-{seed}", temperature=1.0, top_p=0.99, seed=seed)
        sharp = sequence_of([1], name=f"sharp-{seed}", temperature=1.0, top_p=0.5, seed=seed)
        logits = torch.linspace(0.01, 0.0, vocab_size).repeat(2, 1)
        logits[1, 7] = 50.0
        token_ids = sampler.sample([flat, sharp], logits).token_ids
        assert token_ids[1] == 7
        seen.append(token_ids[0])
    assert waits == [4, 1] * 20
    assert max(seen) > vocab_size // 2


def penalized(scores: torch.Tensor, sequence: Sequence) -> torch.Tensor:
    """One token at a time, as vLLM documents it."""
    params, result = sequence.params, scores.clone()
    output = sequence.token_ids[sequence.num_prompt_tokens :]
    for token_id in range(len(scores)):
        if token_id in sequence.token_ids:
            factor = params.repetition_penalty
            result[token_id] *= factor if result[token_id] < 0 else 1 / factor
        result[token_id] -= params.frequency_penalty * output.count(token_id)
        result[token_id] -= params.presence_penalty * (token_id in output)
    return result


def test_penalties_follow_each_sequence_as_others_come_and_go() -> None:
    chance, counts = random.Random(3), TokenCounts()
    sequences: list[Sequence] = []
    for step in range(30):
        if len(sequences) < 7 and step % 2 == 0:
            params = {
                "repetition_penalty": chance.choice([1.0, 1.3]),
                "frequency_penalty": chance.choice([0.0, 0.4]),
                "presence_penalty": chance.choice([0.0, 0.2]),
            }
            tokens = chance.choices(range(VOCAB_SIZE), k=6)
            sequences.append(sequence_of(tokens[:4], tokens[4:], **params))
        elif step % 3 == 0:
            counts.forget(sequences.pop(chance.randrange(len(sequences))).sequence_id)
        scores = torch.randn(len(sequences), VOCAB_SIZE)
        wanted = torch.stack([penalized(*pair) for pair in zip(scores, sequences, strict=True)])
        counts.penalize(scores, sequences)
        assert torch.allclose(scores, wanted, atol=1e-5)
        new = chance.choices(range(VOCAB_SIZE), k=len(sequences))
        counts.add(sequences, new)
        for sequence, token_id in zip(sequences, new, strict=True):
            sequence.token_ids.append(token_id)


def test_biases_meet_their_rows() -> None:
    rows = [sequence_of([1], name="a"), sequence_of([1], name="b", logit_bias={0: -2.0, 39: 3.0})]
    scores = torch.zeros(2, VOCAB_SIZE)
    add_bias(scores, rows)
    assert scores.nonzero().tolist() == [[1, 0], [1, 39]]
    assert scores[1, [0, 39]].tolist() == [-2.0, 3.0]


def test_early_stops_are_forbidden_unless_nothing_else_is_left() -> None:
    wanting = {"min_tokens": 3, "stop_token_ids": [4, 9]}
    rows = [
        sequence_of([1], name="early", **wanting),
        sequence_of([1], [2, 3, 4], name="late", **wanting),
        sequence_of([1], name="nothing else", **wanting),
    ]
    scores = torch.ones(3, VOCAB_SIZE)
    scores[2] = float("-inf")
    scores[2, 9] = 0.5
    forbid_early_stops(scores, rows)
    hidden = torch.isneginf(scores)
    assert hidden[0].nonzero().flatten().tolist() == [4, 9]
    assert not hidden[1].any()
    assert scores[2, 9] == 0.5
