"""Rows as wide as a vocabulary, some at a time: the same tokens, and a bounded peak that a load
counts."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from inference.engine.load.memory_use import HostGauge
from inference.engine.load.trial import try_out
from inference.engine.sampling import drawing
from inference.engine.sampling.drawing import Draw, TorchDrawer, filter_among
from inference.engine.sampling.sampler import Sampler
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from inference.protocol.load import LoadSpec, PrefillSpeed
from inference.protocol.sampling import SamplingParams, TokenLogprob
from tests.cases import each_case
from tests.inference.engine.asking import sequence_of
from tests.inference.engine.load.test_trial import TimedModel

VOCAB_SIZE = 3000
NUM_ROWS = 11
PARAMS = [
    SamplingParams(max_tokens=1, temperature=0.5 + row / 4, top_p=0.6 + row / 30, top_k=300 * row)
    for row in range(NUM_ROWS)
]


def scores() -> torch.Tensor:
    return torch.randn(NUM_ROWS, VOCAB_SIZE, generator=torch.Generator().manual_seed(4)) * 2


@each_case(
    ("num_rows", "vocab_size", "sizes"),
    [(3, 49_152, [3]), (256, 151_936, [55] * 4 + [36]), (2, 10**9, [1, 1]), (0, 100, [])],
)
def test_pieces(num_rows: int, vocab_size: int, sizes: list[int]) -> None:
    pieces = list(drawing.row_pieces(num_rows, vocab_size))
    assert [piece.stop - piece.start for piece in pieces] == sizes
    assert [row for piece in pieces for row in range(piece.start, piece.stop)] == [*range(num_rows)]


@each_case("at_once", [1, 4])
def test_draws_in_pieces_are_the_same_and_none_is_larger(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    draws = [Draw(row, params, 0.05 + 0.08 * row) for row, params in enumerate(PARAMS)]
    whole, are_short = TorchDrawer().draw(scores(), draws, VOCAB_SIZE)
    seen: list[int] = []

    def watched(rows: torch.Tensor, *rest: object) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(len(rows))
        return filter_among(rows, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(drawing, "filter_among", watched)
    monkeypatch.setattr(drawing, "MOST_SCORES_AT_ONCE", at_once * VOCAB_SIZE)
    drawn, short = TorchDrawer().draw(scores(), draws, VOCAB_SIZE)
    assert torch.equal(drawn, whole) and torch.equal(short, are_short)
    assert max(seen) <= at_once and sum(seen) == NUM_ROWS


@each_case("rows", [[2, 0, 9, 5], list(range(NUM_ROWS))])
def test_tokens_are_forbidden_in_pieces(monkeypatch: pytest.MonkeyPatch, rows: list[int]) -> None:
    bits = np.random.default_rng(1).integers(0, 256, (len(rows), VOCAB_SIZE // 8 + 4), np.uint8)
    whole, pieces = scores(), scores()
    TorchDrawer().forbid(whole, rows, bits)
    monkeypatch.setattr(drawing, "MOST_SCORES_AT_ONCE", 2 * VOCAB_SIZE)
    TorchDrawer().forbid(pieces, rows, bits)
    assert torch.equal(pieces, whole)
    allowed = np.unpackbits(bits, axis=1, bitorder="little")[:, :VOCAB_SIZE].astype(bool)
    wanted = scores()
    wanted[rows] = wanted[rows].masked_fill(~torch.from_numpy(allowed), float("-inf"))
    assert torch.equal(whole, wanted)


def test_log_probabilities_in_pieces_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def sampled() -> dict[int, TokenLogprob]:
        sequences = [
            sequence_of([1], temperature=0.0, top_logprobs=row % 3) for row in range(NUM_ROWS)
        ]
        return Sampler(VOCAB_SIZE).sample(sequences, scores()).logprobs

    whole = sampled()
    monkeypatch.setattr(drawing, "MOST_SCORES_AT_ONCE", 3 * VOCAB_SIZE)
    assert sampled() == whole
    assert [len(whole[row].top) for row in range(NUM_ROWS)] == [row % 3 for row in range(NUM_ROWS)]


def test_how_many_candidates_a_neighbour_wants_changes_no_threshold() -> None:
    own = SamplingParams(max_tokens=1, top_k=1000, top_p=0.999)
    mate = SamplingParams(max_tokens=1, top_k=VOCAB_SIZE - 1, top_p=0.999)
    for seed in range(40):
        row = torch.randn(1, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)).softmax(-1)
        alone, _ = filter_among(row, [own], 1)
        among, _ = filter_among(row.repeat(2, 1), [own, mate], 1)
        assert torch.equal(alone[0], among[0])


def test_a_load_counts_what_sampling_takes() -> None:
    limits = SchedulerLimits(max_running=96)
    vocab_size = 50_000 + random.Random(0).randrange(8)
    model = TimedModel(PrefillSpeed(token_s=1e-5))
    gauge = HostGauge()
    spec = LoadSpec(job_id="1", model="tiny", source="path:none", max_context_tokens=64)
    small = try_out(spec, model, TorchDrawer(), limits, gauge, 10**6, 64)  # type: ignore[arg-type]
    model.config = replace(model.config, vocab_size=vocab_size)
    large = try_out(spec, model, TorchDrawer(), limits, gauge, 10**6, 64)  # type: ignore[arg-type]
    assert large.load_bytes - small.load_bytes > 2 * limits.max_running * vocab_size * 4
