"""One model of a step's time, on devices that are made up."""

from __future__ import annotations

import random
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.engine.scheduling.pace import StepPacer, StepTimeModel
from inference.engine.step import SMALLEST_CHUNK
from tests.cases import each_case

TARGET_S, MAX_RUNNING, MAX_TOKENS = 0.1, 256, 2048


class Card:
    """Unpacks every weight for each chunk of a prompt, as packed prefill does."""

    def __init__(self, unpacking_s: float, token_s: float = 0.0004) -> None:
        self.unpacking_s = unpacking_s
        self.token_s = token_s

    def seconds(self, num_rows: int, num_tokens: int) -> float:
        prompt_s = self.unpacking_s + num_tokens * self.token_s if num_tokens else 0.0
        return 0.012 + 0.0001 * num_rows + prompt_s


def model_of() -> StepTimeModel:
    return StepTimeModel(row_s=0.0125, token_s=0.0002)


def chunks_of(
    pacer: StepPacer, card: Card, num_rows: int, num_chunks: int, num_decode_steps: int = 3
) -> list[int]:
    """Runs prompts in chunks as the pacer cuts them, and steps between them that only decode."""
    sizes = []
    for _ in range(num_chunks):
        num_tokens = pacer.prefill_tokens(num_rows)
        sizes.append(num_tokens)
        pacer.record(
            num_decode_rows=num_rows,
            num_prefill_tokens=num_tokens,
            step_s=card.seconds(num_rows, num_tokens),
        )
        for _ in range(num_decode_steps if num_rows else 0):
            pacer.record(
                num_decode_rows=num_rows, num_prefill_tokens=0, step_s=card.seconds(num_rows, 0)
            )
    return sizes


def settled(card: Card, num_rows: int) -> tuple[StepPacer, int]:
    """Returns the settled pace, and how long its chunks are then: the longer ones that explore now
    and then left out."""
    pacer = StepPacer(MAX_RUNNING, MAX_TOKENS, TARGET_S)
    chunks_of(pacer, card, num_rows, 60)
    return pacer, int(median(chunks_of(pacer, card, num_rows, 15)))


@each_case("num_rows", [0, 1, 16])
@each_case("unpacking_s", [0.08, 0.12, 0.3])
def test_a_fixed_cost_of_prompts_does_not_shorten_chunks_to_nothing(
    unpacking_s: float, num_rows: int
) -> None:
    card = Card(unpacking_s)
    _, num_tokens = settled(card, num_rows)
    best = MAX_TOKENS / card.seconds(num_rows, MAX_TOKENS)
    assert num_tokens / card.seconds(num_rows, num_tokens) > 0.4 * best
    assert card.seconds(num_rows, num_tokens) < max(TARGET_S, 2.5 * unpacking_s), "nor is it long"


@each_case("num_rows", [0, 1, 16])
@each_case("unpacking_s", [0.0, 0.02, 0.04])
def test_chunks_take_the_target_where_they_can(unpacking_s: float, num_rows: int) -> None:
    card = Card(unpacking_s)
    _, num_tokens = settled(card, num_rows)
    assert card.seconds(num_rows, num_tokens) == pytest.approx(TARGET_S, rel=0.1)


def test_prompts_take_no_slots_from_who_decodes() -> None:
    card = Card(0.3)
    assert settled(card, 16)[0].running_limit > 100


def test_a_card_that_stops_unpacking_is_noticed() -> None:
    (pacer, _), card = settled(Card(0.3), 4), Card(0.0)
    chunks_of(pacer, card, 4, 40)
    num_tokens = median(chunks_of(pacer, card, 4, 15))
    assert card.seconds(4, int(num_tokens)) == pytest.approx(TARGET_S, rel=0.1)


def test_noise_leaves_the_coefficients_near_what_they_are() -> None:
    model, card, generator = model_of(), Card(0.05), random.Random(3)
    for _ in range(300):
        num_rows = generator.randrange(1, 64)
        num_tokens = generator.choice([0, generator.randrange(SMALLEST_CHUNK, 1024)])
        step_s = card.seconds(num_rows, num_tokens) * generator.uniform(0.9, 1.1)
        model.record(num_rows, num_tokens, step_s)
    for num_rows, num_tokens in ((1, 0), (48, 0), (8, 512), (40, 1000)):
        expected = card.seconds(num_rows, num_tokens)
        assert model.seconds(num_rows, num_tokens) == pytest.approx(expected, rel=0.25)


def test_one_step_that_hung_changes_little() -> None:
    model, card = model_of(), Card(0.05)
    for num_rows in range(1, 40):
        model.record(num_rows, 0, card.seconds(num_rows, 0))
    model.record(20, 0, 10.0)
    assert model.seconds(20, 0) < 1.5 * card.seconds(20, 0)


@settings(max_examples=2 * settings.default.max_examples)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 4096),
            st.integers(0, 65_536),
            st.floats(1e-9, 1e4, allow_nan=False, allow_infinity=False),
        ),
        max_size=60,
    )
)
def test_whatever_steps_took_nothing_is_negative_or_no_number(
    steps: list[tuple[int, int, float]],
) -> None:
    model, pacer = model_of(), StepPacer(MAX_RUNNING, MAX_TOKENS, TARGET_S)
    for num_rows, num_tokens, step_s in steps:
        model.record(num_rows, num_tokens, step_s)
        pacer.record(num_decode_rows=num_rows, num_prefill_tokens=num_tokens, step_s=step_s)
        assert 0 <= model.seconds(num_rows, num_tokens) < 1e9
        assert model.rows_within(TARGET_S) >= 0 <= model.tokens_within(TARGET_S, num_rows)
        assert 1 <= pacer.running_limit <= MAX_RUNNING
        assert SMALLEST_CHUNK <= pacer.prefill_tokens(num_rows) <= MAX_TOKENS
