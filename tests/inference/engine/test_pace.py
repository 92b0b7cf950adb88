"""The running limit and prompt chunks follow the machine's speed, on a fake clock; and the model of
a step's time, on devices that are made up."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.engine.pace import MEMORY_STEPS, MIN_RUNNING, StepPacer, StepTimeModel
from inference.engine.step import AVERAGED_TOKENS, SMALLEST_CHUNK, PrefillAverage
from inference.protocol.load import PrefillSpeed
from tests.cases import each_case

TARGET_S = 0.1
MAX_RUNNING = 256
MAX_TOKENS = 512
FULL = 97
Cost = Callable[[int], float]


def cpu(num_rows: int) -> float:
    """Two cores: 64 rows in a tenth of a second, and ``FULL`` in half as long again."""
    return 0.002 + 0.00153 * num_rows


COSTS: list[tuple[Cost, int]] = [
    (cpu, FULL),
    (lambda num_rows: 0.008 + 0.00002 * num_rows, MAX_RUNNING),
    (lambda num_rows: 0.05 * num_rows, MIN_RUNNING),
]


def pacer_for(max_running: int = MAX_RUNNING) -> StepPacer:
    return StepPacer(max_running, MAX_TOKENS, TARGET_S)


def record(pacer: StepPacer, num_rows: int, num_tokens: int, step_s: float) -> None:
    pacer.record(num_decode_rows=num_rows, num_prefill_tokens=num_tokens, step_s=step_s)


def run_full(pacer: StepPacer, cost: Cost, num_steps: int, noise: float = 0.0) -> list[int]:
    """Runs as many rows as the pacer allows in every step. Returns its limit after each step."""
    generator, limits = random.Random(1), []
    for _ in range(num_steps):
        step_s = cost(pacer.running_limit) * (1 + generator.uniform(-noise, noise))
        record(pacer, pacer.running_limit, 0, step_s)
        limits.append(pacer.running_limit)
    return limits


def test_settles_where_a_full_step_takes_half_as_long_again() -> None:
    for cost, expected in COSTS:
        limits = run_full(pacer_for(), cost, 40)
        assert limits[-1] == pytest.approx(expected, abs=2)
        # From below, without ever going back: it does not swing.
        assert limits == sorted(limits)
        assert expected < MAX_RUNNING or limits[4] == MAX_RUNNING, (
            "a fast machine has all after a few"
        )


def test_what_moves_the_limit_and_what_does_not() -> None:
    pacer = pacer_for()
    settled = run_full(pacer, cpu, 40)[-1]
    assert pacer.prefill_tokens(settled) == SMALLEST_CHUNK, "prompts come through"
    record(pacer, settled, 0, 1.0)
    assert pacer.running_limit > settled / 2, "one slow step is no news"
    settled = run_full(pacer, cpu, 12)[-1]
    assert settled == pytest.approx(FULL, abs=3)
    for _ in range(100):
        record(pacer, 1, 0, 0.0035)
    assert pacer.running_limit == settled, "a few rows take no slots away"
    limits = run_full(pacer, cpu, 200, noise=0.3)
    assert min(limits) > 72 and max(limits) < 135
    assert all(abs(after - before) <= 18 for before, after in pairwise(limits))
    pacer = pacer_for()
    run_full(pacer, cpu, 40)
    assert run_full(pacer, lambda rows: 2 * cpu(rows), 40)[-1] == pytest.approx(FULL / 2, abs=3)
    pacer = pacer_for()
    for _ in range(40):  # more rows than slots only bring them down to what fits
        record(pacer, 200, 0, cpu(200))
    assert pacer.running_limit == pytest.approx(FULL, abs=3)
    assert pacer_for(max_running=1).running_limit == 1
    assert run_full(pacer_for(max_running=20), COSTS[1][0], 20)[-1] == 20


def test_prompt_chunks_alone() -> None:
    for tokens_per_s, expected in ((2000.0, 200), (1e9, MAX_TOKENS), (50.0, SMALLEST_CHUNK)):
        pacer = pacer_for()
        before = pacer.prefill_tokens(0)
        record(pacer, 0, 3, 0.05)
        assert pacer.prefill_tokens(0) == before, "a small remainder changes nothing"
        for _ in range(40):
            num_tokens = pacer.prefill_tokens(0)
            record(pacer, 0, num_tokens, num_tokens / tokens_per_s)
        assert pacer.prefill_tokens(0) == pytest.approx(expected, abs=2)


@each_case("target_s", [TARGET_S, None])
def test_what_does_not_fit_the_memory_is_not_tried_again_for_a_while(
    target_s: float | None,
) -> None:
    def run(num_steps: int) -> int:
        for _ in range(num_steps):
            record(pacer, 0, pacer.prefill_tokens(0), 0.001)
        return pacer.prefill_tokens(0)

    pacer = StepPacer(MAX_RUNNING, MAX_TOKENS, target_s)
    if target_s is None:
        record(pacer, 200, 512, 100.0)
        assert (pacer.running_limit, pacer.prefill_tokens(200)) == (MAX_RUNNING, MAX_TOKENS)
    assert run(30) == MAX_TOKENS
    pacer.record_too_large(MAX_TOKENS)
    assert run(MEMORY_STEPS - 1) == MAX_TOKENS // 2
    assert run(1) == MAX_TOKENS
    for _ in range(20):
        pacer.record_too_large(MAX_TOKENS)
        pacer.record_too_large(pacer.prefill_tokens(0))
    assert pacer.prefill_tokens(0) == SMALLEST_CHUNK


MEASURED = PrefillSpeed(token_s=0.001, growth_s=1e-6)


def test_the_average_of_prompts() -> None:
    def run(slowdown: float, num_tokens: int, start: int = 0) -> float:
        for begin in range(start, start + num_tokens, 512):
            step_s = MEASURED.span_s(begin, begin + 512) * slowdown
            average.record([(begin, begin + 512)], step_s)
        return average.speed.prompt_s(1000) / MEASURED.prompt_s(1000)

    average = PrefillAverage(MEASURED)
    average.record([(0, 5)], 100.0)
    average.record([], 100.0)
    assert average.speed == MEASURED, "small remainders prove nothing"
    assert 1.05 < run(2.0, 4096) < 1.2
    assert run(2.0, 8 * AVERAGED_TOKENS) == pytest.approx(2, rel=0.01)
    average = PrefillAverage(MEASURED)
    run(1.0, 8192, start=100_000)  # deep chunks are slower, and do not look so
    assert average.speed.token_s == pytest.approx(MEASURED.token_s)


MOST_TOKENS = 2048


def card_s(unpacking_s: float, num_rows: int, num_tokens: int) -> float:
    """Unpacks every weight for each chunk of a prompt, as packed prefill does."""
    prompt_s = unpacking_s + num_tokens * 0.0004 if num_tokens else 0.0
    return 0.012 + 0.0001 * num_rows + prompt_s


@each_case("num_rows", [0, 1, 16])
@each_case("unpacking_s", [0.0, 0.04, 0.08, 0.3])
def test_chunks_take_the_target_where_they_can(unpacking_s: float, num_rows: int) -> None:
    """Prompts in chunks as the pacer cuts them, and steps between them that only decode. A fixed
    cost of prompts beyond the target does not shorten them to nothing, nor is a step long."""
    pacer, sizes = StepPacer(MAX_RUNNING, MOST_TOKENS, TARGET_S), []
    for _ in range(75):
        sizes.append(pacer.prefill_tokens(num_rows))
        for num_tokens in (sizes[-1], 0, 0, 0) if num_rows else (sizes[-1],):
            record(pacer, num_rows, num_tokens, card_s(unpacking_s, num_rows, num_tokens))
    num_tokens = int(median(sizes[-15:]))  # longer ones explore now and then
    step_s = card_s(unpacking_s, num_rows, num_tokens)
    if unpacking_s < 0.08:
        assert step_s == pytest.approx(TARGET_S, rel=0.1)
        return
    best = MOST_TOKENS / card_s(unpacking_s, num_rows, MOST_TOKENS)
    assert num_tokens / step_s > 0.4 * best
    assert step_s < max(TARGET_S, 2.5 * unpacking_s)
    assert num_rows < 16 or pacer.running_limit > 100, "prompts take no slots from who decodes"


STEPS = st.tuples(st.integers(0, 4096), st.integers(0, 65_536), st.floats(1e-9, 1e4))


@settings(max_examples=2 * settings.default.max_examples)
@given(st.lists(STEPS, max_size=60))
def test_whatever_steps_took_nothing_is_negative_or_no_number(
    steps: list[tuple[int, int, float]],
) -> None:
    model = StepTimeModel(row_s=0.0125, token_s=0.0002)
    pacer = StepPacer(MAX_RUNNING, MOST_TOKENS, TARGET_S)
    for num_rows, num_tokens, step_s in steps:
        model.record(num_rows, num_tokens, step_s)
        record(pacer, num_rows, num_tokens, step_s)
        assert 0 <= model.seconds(num_rows, num_tokens) < 1e9
        assert model.rows_within(TARGET_S) >= 0 <= model.tokens_within(TARGET_S, num_rows)
        assert 1 <= pacer.running_limit <= MAX_RUNNING
        assert SMALLEST_CHUNK <= pacer.prefill_tokens(num_rows) <= MOST_TOKENS
