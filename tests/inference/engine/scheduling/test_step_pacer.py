"""The running limit and prompt chunks follow the machine's speed, on a fake clock."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from inference.engine.scheduling.pace import MEMORY_STEPS, MIN_RUNNING, StepPacer
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


def gpu(num_rows: int) -> float:
    return 0.008 + 0.00002 * num_rows


def slow(num_rows: int) -> float:
    return 0.05 * num_rows


def pacer_for(max_running: int = MAX_RUNNING) -> StepPacer:
    return StepPacer(max_running, MAX_TOKENS, TARGET_S)


def run_full(pacer: StepPacer, cost: Cost, num_steps: int, noise: float = 0.0) -> list[int]:
    """Runs as many rows as the pacer allows in every step. Returns its limit after each step."""
    generator = random.Random(1)
    limits = []
    for _ in range(num_steps):
        num_rows = pacer.running_limit
        step_s = cost(num_rows) * (1 + generator.uniform(-noise, noise))
        pacer.record(num_decode_rows=num_rows, num_prefill_tokens=0, step_s=step_s)
        limits.append(pacer.running_limit)
    return limits


@each_case(("cost", "expected"), [(cpu, FULL), (gpu, MAX_RUNNING), (slow, MIN_RUNNING)])
def test_settles_where_a_full_step_takes_half_as_long_again(cost: Cost, expected: int) -> None:
    limits = run_full(pacer_for(), cost, 40)
    assert limits[-1] == pytest.approx(expected, abs=2)
    # From below, without ever going back: it does not swing.
    assert limits == sorted(limits)
    assert cost is not gpu or limits[4] == MAX_RUNNING, "a fast machine has all after a few steps"


def test_noise_moves_it_a_little() -> None:
    pacer = pacer_for()
    run_full(pacer, cpu, 40)
    limits = run_full(pacer, cpu, 200, noise=0.3)
    assert min(limits) > 72 and max(limits) < 135
    assert all(abs(after - before) <= 18 for before, after in pairwise(limits))


def test_a_few_rows_take_no_slots_away() -> None:
    pacer = pacer_for()
    settled = run_full(pacer, cpu, 40)[-1]
    for _ in range(100):
        pacer.record(num_decode_rows=1, num_prefill_tokens=0, step_s=0.0035)
    assert pacer.running_limit == settled


def test_a_machine_that_gets_slower_has_fewer_slots() -> None:
    pacer = pacer_for()
    run_full(pacer, cpu, 40)
    assert run_full(pacer, lambda rows: 2 * cpu(rows), 40)[-1] == pytest.approx(FULL / 2, abs=3)


def test_one_slow_step_is_no_news() -> None:
    pacer = pacer_for()
    settled = run_full(pacer, cpu, 40)[-1]
    assert pacer.prefill_tokens(settled) == SMALLEST_CHUNK, "prompts come through"
    pacer.record(num_decode_rows=settled, num_prefill_tokens=0, step_s=1.0)
    assert pacer.running_limit > settled / 2
    assert run_full(pacer, cpu, 12)[-1] == pytest.approx(settled, abs=3)


def test_more_rows_than_slots_only_bring_them_down_to_what_fits() -> None:
    pacer = pacer_for()
    for _ in range(40):
        pacer.record(num_decode_rows=200, num_prefill_tokens=0, step_s=cpu(200))
    assert pacer.running_limit == pytest.approx(FULL, abs=3)


def test_operator_who_wants_few_slots_has_them() -> None:
    assert pacer_for(max_running=1).running_limit == 1
    assert run_full(pacer_for(max_running=20), gpu, 20)[-1] == 20


@each_case("num_rows", [0, 1, 20, 50])
def test_mixed_steps_take_the_target_together(num_rows: int) -> None:
    pacer, token_s = pacer_for(), 0.0005
    for _ in range(60):
        num_tokens = pacer.prefill_tokens(num_rows)
        step_s = (cpu(num_rows) if num_rows else 0.0) + num_tokens * token_s
        pacer.record(num_decode_rows=num_rows, num_prefill_tokens=num_tokens, step_s=step_s)
    assert step_s == pytest.approx(TARGET_S, rel=0.05)
    assert SMALLEST_CHUNK < num_tokens < MAX_TOKENS


@each_case(("tokens_per_s", "expected"), [(2000.0, 200), (1e9, MAX_TOKENS), (50.0, SMALLEST_CHUNK)])
def test_prompt_chunks_alone(tokens_per_s: float, expected: int) -> None:
    pacer = pacer_for()
    for _ in range(40):
        num_tokens = pacer.prefill_tokens(0)
        pacer.record(
            num_decode_rows=0, num_prefill_tokens=num_tokens, step_s=num_tokens / tokens_per_s
        )
    assert pacer.prefill_tokens(0) == pytest.approx(expected, abs=2)


def test_a_small_remainder_changes_nothing() -> None:
    pacer = pacer_for()
    before = pacer.prefill_tokens(0)
    pacer.record(num_decode_rows=0, num_prefill_tokens=3, step_s=0.05)
    assert pacer.prefill_tokens(0) == before


def test_without_a_target_always_the_most() -> None:
    pacer = StepPacer(MAX_RUNNING, MAX_TOKENS, None)
    pacer.record(num_decode_rows=200, num_prefill_tokens=512, step_s=100.0)
    assert pacer.running_limit == MAX_RUNNING
    assert pacer.prefill_tokens(200) == MAX_TOKENS


@each_case("target_s", [TARGET_S, None])
def test_what_does_not_fit_the_memory_is_not_tried_again_for_a_while(
    target_s: float | None,
) -> None:
    def run(num_steps: int) -> int:
        for _ in range(num_steps):
            num_tokens = pacer.prefill_tokens(0)
            pacer.record(num_decode_rows=0, num_prefill_tokens=num_tokens, step_s=0.001)
        return pacer.prefill_tokens(0)

    pacer = StepPacer(MAX_RUNNING, MAX_TOKENS, target_s)
    assert run(30) == MAX_TOKENS
    pacer.record_too_large(MAX_TOKENS)
    assert run(MEMORY_STEPS - 1) == MAX_TOKENS // 2
    assert run(1) == MAX_TOKENS
    for _ in range(20):
        pacer.record_too_large(MAX_TOKENS)
        pacer.record_too_large(pacer.prefill_tokens(0))
    assert pacer.prefill_tokens(0) == SMALLEST_CHUNK


MEASURED = PrefillSpeed(token_s=0.001, growth_s=1e-6)


def run(average: PrefillAverage, slowdown: float, num_tokens: int, *, start: int = 0) -> None:
    for begin in range(start, start + num_tokens, 512):
        step_s = MEASURED.span_s(begin, begin + 512) * slowdown
        average.record([(begin, begin + 512)], step_s)


def test_it_goes_where_requests_go_and_forgets_slowly() -> None:
    average = PrefillAverage(MEASURED)
    run(average, 2.0, 4096)
    a_little = average.speed.prompt_s(1000) / MEASURED.prompt_s(1000)
    assert 1.05 < a_little < 1.2
    run(average, 2.0, 8 * AVERAGED_TOKENS)
    assert average.speed.prompt_s(1000) == pytest.approx(2 * MEASURED.prompt_s(1000), rel=0.01)


def test_deep_chunks_are_slower_and_do_not_look_so() -> None:
    average = PrefillAverage(MEASURED)
    run(average, 1.0, 8192, start=100_000)
    assert average.speed.token_s == pytest.approx(MEASURED.token_s)


def test_small_remainders_prove_nothing() -> None:
    average = PrefillAverage(MEASURED)
    assert average.speed == MEASURED
    average.record([(0, 5)], 100.0)
    average.record([], 100.0)
    assert average.speed == MEASURED
