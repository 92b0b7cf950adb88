"""One kernel draws a row's token by the rules of the filters, against sorting in float64."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.engine.drawing import TorchDrawer
from inference.models.cuda.drawing import draw_tokens, find_likeliest
from tests.cases import each_case

pytestmark = pytest.mark.slow

Doubles = npt.NDArray[np.float64]
ROUNDING = 1e-5
"""The rounding of a weight, and of a cumulative probability."""
LARGEST_UNIFORM = 1 - 2**-24
BLOCK_TOKENS = 64


class DrawParams(NamedTuple):
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


ALL_PARAMS = (
    *(DrawParams(), DrawParams(top_k=3), DrawParams(top_p=0.7), DrawParams(min_p=0.2)),
    DrawParams(temperature=0.6, top_k=40, top_p=0.9, min_p=0.01),
)


def draw(
    scores: torch.Tensor,
    draws: list[tuple[int, DrawParams, float]],
    block_tokens: int = BLOCK_TOKENS,
) -> list[int]:
    """``draws``: rows, their parameters and a uniform number. Returns the drawn token ids."""
    integers = torch.tensor([(row, params.top_k) for row, params, _ in draws])
    floats = torch.tensor([(w.temperature, w.top_p, w.min_p, u) for _, w, u in draws])
    to = scores.device
    found = draw_tokens(scores, integers.to(to), floats.to(to), block_tokens)
    return found.tolist()  # type: ignore[no-any-return]


def kept_weights(scores: Doubles, params: DrawParams, tilt: float) -> Doubles:
    """Keeps weights by sorting; ``tilt`` moves what top_p and min_p ask for by a little."""
    weights = np.exp((scores - scores.max()) / params.temperature)
    values = np.sort(weights)[::-1][: params.top_k or len(weights)]
    smallest = values[-1]
    if params.top_p < 1:
        before = values.cumsum() - values
        within = values[before < tilt * params.top_p * values.sum()]
        smallest = within[-1] if len(within) else 1.0
    smallest = min(max(smallest, tilt * params.min_p), 1.0)
    return np.where(weights >= smallest, weights, 0.0)


def is_right(token_id: int, scores: Doubles, params: DrawParams, uniform: float) -> bool:
    """What lies at a border within rounding may fall on either side."""
    for tilt in (1 - ROUNDING, 1, 1 + ROUNDING):
        kept = kept_weights(scores, params, tilt)
        end = float(kept[: token_id + 1].sum() / kept.sum()) + ROUNDING
        begin = float(kept[:token_id].sum() / kept.sum()) - ROUNDING
        if kept[token_id] > 0 and begin <= uniform <= end:
            return True
    return False


@pytest.mark.filterwarnings("ignore:overflow encountered")  # of a temperature without an inverse
@settings(max_examples=40)
@given(
    seed=st.integers(0, 1000),
    vocab_size=st.sampled_from([1, 5, 64, 65, 300]),
    spread=st.sampled_from([0.0, 0.5, 3.0, 12.0]),
    forbidden_share=st.sampled_from([0.0, 0.5]),
    params=st.builds(
        DrawParams,
        temperature=st.sampled_from([1e-44, 0.3, 1.0, 2.0]),
        top_k=st.sampled_from([0, 1, 7, 40, 5000]),
        top_p=st.sampled_from([0.0, 0.1, 0.6, 0.95, 1.0]),
        min_p=st.sampled_from([0.0, 0.02, 1.0]),
    ),
    uniform=st.sampled_from([0.0, 0.25, 0.8, LARGEST_UNIFORM]),
)
def test_draws_are_those_of_the_sorted_distribution(
    device: torch.device,
    seed: int,
    vocab_size: int,
    spread: float,
    forbidden_share: float,
    params: DrawParams,
    uniform: float,
) -> None:
    """A row does not know the others, and the size of a block changes nothing."""
    random = np.random.default_rng(seed)
    scores = np.round(random.standard_normal((3, vocab_size)) * spread * 64) / 64
    scores[:, 1:][random.random((3, vocab_size - 1)) < forbidden_share] = -math.inf
    wide = torch.zeros(3, vocab_size + 83, device=device)
    on_device = wide[:, 50 : 50 + vocab_size]
    on_device.copy_(torch.from_numpy(scores).float())
    draws = [(2, params, uniform), (0, ALL_PARAMS[seed % 5], 0.3), (2, ALL_PARAMS[seed % 5], 0.6)]
    found = draw(on_device, draws)
    for token_id, (row, own, own_uniform) in zip(found, draws, strict=True):
        assert is_right(token_id, scores[row], own, own_uniform)
    assert draw(on_device[2:], [(0, params, uniform)], block_tokens=1024) == found[:1]


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:All-NaN")  # the interpreter's numpy
@each_case("value", [math.nan, math.inf, -math.inf])
@each_case("places", [slice(70, 71), slice(None)])
def test_what_is_no_number_gets_some_token(
    device: torch.device, value: float, places: slice
) -> None:
    scores = torch.zeros(2, 100, device=device)
    scores[0, places] = value
    scores[1, 9] = 50.0
    drawn = draw(scores, [(row, params, 0.5) for params in ALL_PARAMS for row in (0, 1)])
    assert all(0 <= token_id < 100 for token_id in drawn)
    assert drawn[1::2] == [9] * len(ALL_PARAMS)


@settings(max_examples=30)
@given(
    seed=st.integers(0, 100),
    vocab_size=st.sampled_from([1, 64, 65, 300]),
    num_rows=st.integers(1, 3),
)
def test_the_likeliest_is_the_first_of_equals(
    device: torch.device, seed: int, vocab_size: int, num_rows: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-9, 10, (num_rows, vocab_size), generator=generator).float()
    token_ids, are_finite = find_likeliest(scores.to(device), BLOCK_TOKENS)
    assert token_ids.tolist() == scores.numpy().argmax(-1).tolist()
    assert are_finite.tolist() == [True] * num_rows
    scores = scores[:1].repeat(4, 1)
    scores[[0, 1, 2], seed % vocab_size] = torch.tensor([math.nan, math.inf, -math.inf])
    scores[3] = -math.inf
    wanted = TorchDrawer().likeliest(scores)[1]
    assert find_likeliest(scores.to(device), BLOCK_TOKENS)[1].tolist() == wanted.tolist()
