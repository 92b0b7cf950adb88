"""Drawing from filtered distributions: every drawer, and against sorting in float64 those that do
not take long for it; tests/inference/models/cuda/test_drawing.py has the third. Rows as wide as a
vocabulary are taken some at a time, with a bounded peak."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inference.engine import drawing
from inference.models.cuda.setup import UnfitKernelError
from inference.models.native.decoder import NativeDecoder
from inference.models.native.packing import pack
from inference.models.native.structs import Draw, norm_part
from inference.models.stored_weights import DenseWeight
from inference.protocol.engine import SamplingParams
from tests.cases import each_case
from tests.inference.engine.conftest import library
from tests.inference.engine.load.test_kv_memory import CONFIG
from tests.inference.models.cuda.tiny import tiny_model

ROUNDING = 2e-5
"""The rounding of a cumulative probability in float32."""
DrawerOf = Callable[[int], drawing.Drawer]
against_sorting = pytest.mark.parametrize("drawer_of", ["torch", "native"], indirect=True)


@pytest.fixture(scope="module", params=["torch", "native", "triton"])
def drawer_of(request: pytest.FixtureRequest, native_cache_dir: Path) -> DrawerOf:
    """The drawer for a vocabulary's size."""
    match request.param:
        case "torch":
            return lambda vocab_size: drawing.TorchDrawer()
        case "triton" if torch.cuda.is_available():
            pytest.skip("not interpreted")
        case "triton":
            return lambda vocab_size: drawing.TritonDrawer()
    made = functools.partial(empty_decoder, library(native_cache_dir))
    return functools.cache(made)


def empty_decoder(library: Any, vocab_size: int) -> NativeDecoder:
    """Makes a decoder without a layer: it draws, and nothing else."""
    table = pack(DenseWeight(weight=torch.zeros(vocab_size, 64)))
    return NativeDecoder(
        library,
        replace(CONFIG, vocab_size=vocab_size, num_layers=0),
        layers=[],
        final_norm=norm_part(64, torch.ones(64)),
        embedding=table,
        head=table,
        kv_format="fp32",
        num_threads=2,
    )


def kept_distribution(scores: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """(vocab_size,) float64: by sorting."""
    probabilities = (scores.double() / params.temperature).softmax(-1)
    order = probabilities.argsort(descending=True)
    limited = order[: params.top_k or len(order)]
    values = probabilities[limited]
    before = values.cumsum(0) - values
    is_kept = (before < params.top_p * values.sum()) if params.top_p < 1 else before >= 0
    is_kept[0] = True
    is_kept &= values >= params.min_p * values[0]
    # Ties with the last one stay.
    return torch.where(probabilities >= values[is_kept].min(), probabilities, 0.0)


def draw_all(drawer: drawing.Drawer, scores: torch.Tensor, draws: list[Draw]) -> list[int]:
    return drawer.draw(scores, draws).tolist()  # type: ignore[no-any-return]


@against_sorting
@given(
    seed=st.integers(0, 1000),
    vocab_size=st.sampled_from([5, 16, 50, 513, 3000]),
    spread=st.sampled_from([0.0, 0.5, 3.0, 12.0]),
    params=st.builds(
        SamplingParams,
        max_tokens=st.just(1),
        temperature=st.sampled_from([0.3, 1.0, 2.0]),
        top_k=st.sampled_from([0, 1, 7, 40, 300, 5000]),
        top_p=st.sampled_from([0.1, 0.6, 0.95, 1.0]),
        min_p=st.sampled_from([0.0, 0.02, 1.0]),
    ),
)
def test_draws_are_those_of_the_sorted_distribution(
    drawer_of: DrawerOf, seed: int, vocab_size: int, spread: float, params: SamplingParams
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(3, vocab_size, generator=generator) * spread
    uniforms = [0.0, 0.25, 0.8, 1 - 2**-24]
    draws = [drawing.draw_of(2, params, uniform) for uniform in uniforms]
    kept = kept_distribution(scores[2], params)
    cumulative = kept.cumsum(0) / kept.sum()
    drawn = draw_all(drawer_of(vocab_size), scores, draws)
    for token_id, uniform in zip(drawn, uniforms, strict=True):
        # What weighs nearly nothing, or is at the filters' edge, may fall on either side.
        edge = ROUNDING + float(kept[kept > 0].min() / kept.sum()) * (params.top_p < 1)
        assert float(cumulative[token_id]) >= uniform - edge
        below = float(cumulative[token_id - 1]) if token_id else 0.0
        assert below <= uniform + edge


@against_sorting
@given(bits=st.binary(min_size=7, max_size=7), row=st.integers(0, 2))
def test_tokens_without_their_bit_are_forbidden(drawer_of: DrawerOf, bits: bytes, row: int) -> None:
    scores = torch.ones(3, 53)
    drawer = drawer_of(53)
    drawer.forbid(scores, [row], torch.frombuffer(bytearray(bits), dtype=torch.uint8)[None])
    expected = [bits[token_id // 8] >> (token_id % 8) & 1 == 1 for token_id in range(53)]
    assert (scores[row] == 1.0).tolist() == expected
    assert all(value in (1.0, -math.inf) for value in scores[row].tolist())
    drawer.forbid(scores, [0, 1, 2], torch.full((3, 7), 0xFF, dtype=torch.uint8))
    assert (scores == 1.0).sum() == 2 * 53 + sum(expected)


@against_sorting
@given(
    seed=st.integers(0, 100),
    vocab_size=st.sampled_from([5, 16, 53, 600]),
    num_rows=st.sampled_from([1, 4, 9]),
)
def test_the_likeliest_is_the_first_of_equals(
    drawer_of: DrawerOf, seed: int, vocab_size: int, num_rows: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-9, 10, (num_rows, vocab_size), generator=generator).float()
    token_ids, are_finite = drawer_of(vocab_size).likeliest(scores)
    assert token_ids.tolist() == [int(row.argmax()) for row in scores]
    assert are_finite.all()


def test_scores_that_are_not_finite(drawer_of: DrawerOf) -> None:
    for value, place in itertools.product((math.nan, math.inf, -math.inf), (0, 20, 52)):
        scores = torch.zeros(3, 53)
        scores[1, place] = value
        _, are_finite = drawer_of(53).likeliest(scores)
        assert are_finite.tolist() == [True, value == -math.inf, True]
    _, are_finite = drawer_of(53).likeliest(torch.full((1, 53), -math.inf))
    assert are_finite.tolist() == [False]


def test_draws_at_edges(drawer_of: DrawerOf) -> None:
    scores = torch.full((1, 600), -20.0)
    tied = [3, 90, 91, 200, 511, 599]
    scores[0, tied] = 1.0
    params = SamplingParams(max_tokens=1, top_k=2)
    draws = [drawing.draw_of(0, params, (i + 0.5) / 6) for i in range(6)]
    assert draw_all(drawer_of(600), scores, draws) == tied, "ties with the last one stay"

    scores = torch.zeros(1, 600)  # a flat nucleus is found without its order
    scores[0, ::2] = math.log(3)
    draws = [drawing.draw_of(0, SamplingParams(max_tokens=1, top_p=0.7), i / 7) for i in range(7)]
    drawn = draw_all(drawer_of(600), scores, draws)
    assert all(token_id % 2 == 0 for token_id in drawn)
    assert drawn == sorted(drawn) and drawn[-1] > 480

    scores = torch.full((1, 600), -math.inf)  # forbidden tokens are never drawn
    scores[0, [7, 60]] = torch.tensor([0.0, 1.0])
    for how in ({}, {"top_k": 50}, {"top_p": 0.99}):
        params = SamplingParams(max_tokens=1, **how)
        draws = [drawing.draw_of(0, params, uniform) for uniform in (0.0, 0.1, 0.9, 1 - 2**-24)]
        assert draw_all(drawer_of(600), scores, draws) == [7, 7, 60, 60]

    scores = torch.zeros(3, 600)  # what is no number leaves other rows alone
    scores[1, 5] = math.nan
    scores[::2, 9] = 50.0
    params = SamplingParams(max_tokens=1, top_p=0.9, top_k=3)
    drawn = draw_all(
        drawer_of(600), scores, [drawing.draw_of(row, params, 0.5) for row in range(3)]
    )
    assert drawn[0] == drawn[2] == 9
    assert 0 <= drawn[1] < 600


CPU = torch.device("cpu")


class Wrong(drawing.TorchDrawer):
    """Rounds as a kernel may, and errs in one thing."""

    def __init__(self, device: torch.device, error: str = "", **others: float) -> None:
        """``others`` replace a draw's parameters."""
        super().__init__()
        self._error, self._others = error, others

    def draw(self, scores: torch.Tensor, draws: Ordered[Draw]) -> torch.Tensor:
        others = self._others | ({"row": 0} if self._error == "the first row" else {})
        wrong = [
            Draw(*(others.get(name, getattr(draw, name)) for name, *_ in Draw._fields_))
            for draw in draws
        ]
        noise = torch.randn(scores.shape, generator=torch.Generator().manual_seed(1)) * 1e-6
        return super().draw(scores + noise, wrong) + (self._error == "its neighbour")

    def likeliest(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self._error == "the last of equals":
            token_ids, are_finite = super().likeliest(scores.flip(1))
            return scores.shape[1] - 1 - token_ids, are_finite
        return super().likeliest(scores.nan_to_num(0.0) if self._error == "numbers" else scores)


@each_case(
    "wrong",
    [
        *({"temperature": 1.0}, {"top_k": 0}, {"top_p": 1.0}, {"min_p": 0.0}),
        *({"error": "the first row"}, {"error": "its neighbour"}),
        *({"error": "the last of equals"}, {"error": "numbers"}),
    ],
    ids=str,
)
def test_what_is_wrong_is_found_and_rounding_is_not_wrong(wrong: dict[str, Any]) -> None:
    with pytest.raises(UnfitKernelError):
        drawing.try_drawer(Wrong(CPU, **wrong), 61, CPU)
    for vocab_size in (6, 61, 50_000):
        for drawer in (drawing.TorchDrawer(), Wrong(CPU)):
            drawing.try_drawer(drawer, vocab_size, CPU)


@each_case("reason", ["UnfitKernelError", "RuntimeError"])
def test_what_fails_there_leaves_torch(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    made = Mock(return_value=Wrong(CPU, "its neighbour"))
    if reason == "RuntimeError":
        made.side_effect = RuntimeError("no compiler")
    monkeypatch.setattr(drawing, "TritonDrawer", made)
    drawer, words = drawing.drawer_on_card(61, CPU)
    assert type(drawer) is drawing.TorchDrawer
    assert words == f"torch drawing (Triton: {reason})"
    drawer, words = drawing.choose_drawer(tiny_model(CPU))
    assert type(drawer) is drawing.TorchDrawer
    assert words == "", "on a CPU nothing is tried"


VOCAB_SIZE, NUM_ROWS = 3000, 11
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
def test_pieces_are_drawn_and_forbidden_as_the_whole(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    draws = [drawing.draw_of(row, params, 0.05 + 0.08 * row) for row, params in enumerate(PARAMS)]
    whole = drawing.TorchDrawer().draw(scores(), draws)
    watched = Mock(side_effect=drawing.filter_among)
    monkeypatch.setattr(drawing, "filter_among", watched)
    monkeypatch.setattr(drawing, "MOST_SCORES_AT_ONCE", at_once * VOCAB_SIZE)
    drawn = drawing.TorchDrawer().draw(scores(), draws)
    assert torch.equal(drawn, whole)
    seen = [len(call.args[0]) for call in watched.call_args_list]
    assert max(seen) <= at_once and sum(seen) == NUM_ROWS
    rows = [2, 0, 9, 5, 10]
    bits = np.random.default_rng(1).integers(0, 256, (len(rows), VOCAB_SIZE // 8 + 4), np.uint8)
    found, wanted = scores(), scores()
    drawing.TorchDrawer().forbid(found, rows, torch.from_numpy(bits))
    allowed = np.unpackbits(bits, axis=1, bitorder="little")[:, :VOCAB_SIZE].astype(bool)
    wanted[rows] = wanted[rows].masked_fill(~torch.from_numpy(allowed), float("-inf"))
    assert torch.equal(found, wanted)


def test_how_many_candidates_a_neighbour_wants_changes_no_threshold() -> None:
    own = SamplingParams(max_tokens=1, top_k=1000, top_p=0.999)
    mate = SamplingParams(max_tokens=1, top_k=VOCAB_SIZE - 1, top_p=0.999)
    for row in scores().softmax(-1).split(1):
        alone, _ = drawing.filter_among(row, [own], 1)
        among, _ = drawing.filter_among(row.repeat(2, 1), [own, mate], 1)
        assert torch.equal(alone[0], among[0])


@each_case(
    ("filters", "kept"),
    [
        ({"top_p": 0.8}, [0, 1]),
        ({"top_p": 0.81}, [0, 1, 2]),
        # Of what top_k left: 0.5 / 0.8 = 0.625, the first token alone reaches it.
        ({"top_k": 2, "top_p": 0.62}, [0]),
        ({"min_p": 0.4}, [0, 1]),
        ({"top_k": 1}, [0]),
    ],
)
def test_filters(filters: dict[str, Any], kept: list[int]) -> None:
    params = [SamplingParams(max_tokens=1, **filters)]
    found, _ = drawing.filter_among(torch.tensor([[0.5, 0.3, 0.15, 0.05]]), params, 4)
    assert found.nonzero()[:, 1].tolist() == kept
