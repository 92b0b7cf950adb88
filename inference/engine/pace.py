"""Measures steps and bounds the next one.

    StepTimes ─┬▶ StepPacer        limits: how many sequences run, how many prompt tokens join them
               ├▶ TokenRates       tokens per second over the last few seconds
               └▶ PrefillAverage   prompts, over the last tens of thousands of tokens

``StepTimeModel`` models the time of a step on this device, fitted to the times of steps:

    seconds = fixed + rows · row + (prompt + tokens · token, where there are prompt tokens)

``fixed`` is the cost of every step (reading the weights, launches), ``prompt`` that of having
prompts, however short: packed weights are unpacked for each chunk.

Cancellations take effect between steps, and are to free their sequence within 200 ms: so a step
should take a tenth of a second, one that only decodes half as long again. On two CPU cores a step
of 256 rows takes 0.4 s, and a few dozen rows reach the same tokens per second.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from inference.engine.errors import OutOfMemoryFault, StepFault
from inference.engine.step import SMALLEST_CHUNK, PrefillAverage, Schedule, TokenRates
from inference.engine.waiting_queue import SchedulerLimits

FADING = 0.9
"""Each later step multiplies a step's weight by this: the last ten decide, as machines change."""
SETTLED_AFTER = 4


class Spread:
    def __init__(self) -> None:
        self._num = 0
        self._mean = self._variance = 0.0

    def record(self, value: float) -> None:
        self._num += 1
        gain = max(1 - FADING, 1 / self._num)
        away = value - self._mean
        self._mean += gain * away
        self._variance += gain * ((1 - gain) * away**2 - self._variance)

    @property
    def is_settled(self) -> bool:
        return self._num >= SETTLED_AFTER

    def is_within(self, share: float) -> bool:
        return self._variance < (share * self._mean) ** 2


LONGEST = 3.0
"""Longer steps, relative to the expected time, count as this long: something else delayed them."""
TRUSTED_AFTER = 8
REFITTED_EVERY = 8
"""Decode steps between two fits, after the first ``ALWAYS_REFITTED``: a fit costs some 30 µs."""
ALWAYS_REFITTED = 32
SCALED_ROWS, SCALED_TOKENS = 64, 512
"""A typical large step. Terms are divided by it, so that coefficients are of one magnitude."""
STIFFNESS = (0.02, 0.001, 0.02, 0.001)
"""How firmly each coefficient keeps its value while steps do not separate them: a time is explained
by the cost of a row or token before a fixed cost."""
LEAST_HOLD = 1e-9
"""The least weight of a coefficient's value, where no recent step depends on it."""
UNTRIED_ROW_SHARE = 0.04
"""A row's share of a step of one row, before steps of several sizes have been timed."""
DIFFERENT = 0.2
"""Decode steps whose rows vary by a smaller share do not separate a row's cost from the step's."""
FORGETTING = 0.001
"""How far each step of one size moves the row's share back, so that drafts are tried again."""
SHORTEST_S = 1e-5


class StepTimeModel:
    def __init__(self, *, row_s: float, token_s: float) -> None:
        self._coefficients = [0.0, row_s * SCALED_ROWS, 0.0, token_s * SCALED_TOKENS]
        self._squares = [[0.0] * 4 for _ in range(4)]
        """Faded sums over steps of the products of two terms, divided by the step's time."""
        self._sums = [0.0] * 4
        self._num_steps = 0
        self._decode_rows = Spread()
        self._row_share = UNTRIED_ROW_SHARE

    @property
    def is_measured(self) -> bool:
        return self._num_steps > 0

    @property
    def fixed_s(self) -> float:
        return self._coefficients[0]

    @property
    def prompt_s(self) -> float:
        return self._coefficients[2]

    @property
    def token_s(self) -> float:
        return self._coefficients[3] / SCALED_TOKENS

    def seconds(self, num_rows: int, num_tokens: int) -> float:
        fixed, row, prompt, token = self._coefficients
        seconds = fixed + row * num_rows / SCALED_ROWS
        return seconds + prompt + token * num_tokens / SCALED_TOKENS if num_tokens else seconds

    def ratio(self, num_rows: int, num_base_rows: int) -> float:
        """Relative to a step of the fewer ``num_base_rows``, without prompts; at least 1."""
        fixed_share = 1.0 - self._row_share
        base = fixed_share + self._row_share * num_base_rows
        return max(1.0, (fixed_share + self._row_share * num_rows) / base)

    def rows_within(self, step_s: float) -> float:
        left_s = step_s - self._coefficients[0]
        row_s = self._coefficients[1] / SCALED_ROWS
        return max(0.0, left_s / row_s) if row_s > 0 else float("inf")

    def tokens_within(self, step_s: float, num_rows: int) -> float:
        left_s = step_s - self.seconds(num_rows, 0) - self.prompt_s
        return max(0.0, left_s / self.token_s) if self.token_s > 0 else float("inf")

    def record(self, num_rows: int, num_tokens: int, step_s: float) -> None:
        """Weighs a step by its relative error, so short ones count as much as long ones."""
        if self._num_steps >= TRUSTED_AFTER:
            step_s = min(step_s, LONGEST * self.seconds(num_rows, num_tokens))
        step_s = max(step_s, SHORTEST_S)
        self._add(num_rows, num_tokens, step_s)
        self._num_steps += 1
        is_early = self._num_steps <= ALWAYS_REFITTED
        if num_tokens or is_early or self._num_steps % REFITTED_EVERY == 0:
            self._fit()
        if num_rows and not num_tokens:
            self._decode_rows.record(num_rows)
            self._learn_row_share()

    def _learn_row_share(self) -> None:
        fixed, row = self._coefficients[0], self._coefficients[1] / SCALED_ROWS
        if not self._decode_rows.is_within(DIFFERENT) and fixed + row > 0:
            self._row_share = row / (fixed + row)
        else:
            self._row_share += FORGETTING * (UNTRIED_ROW_SHARE - self._row_share)

    def _add(self, num_rows: int, num_tokens: int, step_s: float) -> None:
        terms = [1 / step_s, num_rows / SCALED_ROWS / step_s, 0.0, 0.0]
        if num_tokens:
            terms[2:] = [1 / step_s, num_tokens / SCALED_TOKENS / step_s]
        for index, (row, term) in enumerate(zip(self._squares, terms, strict=True)):
            row[:] = [
                FADING * value + term * other for value, other in zip(row, terms, strict=True)
            ]
            self._sums[index] = FADING * self._sums[index] + term

    def _fit(self) -> None:
        """Least squares over the faded steps, held near the last fit; none may be negative."""
        free = list(range(len(self._coefficients)))
        found = [0.0] * len(free)
        while free:
            solution = self._solution(free)
            if all(value >= 0 for value in solution):
                for index, value in zip(free, solution, strict=True):
                    found[index] = value
                break
            free = [index for index, value in zip(free, solution, strict=True) if value >= 0]
        self._coefficients = found

    def _solution(self, free: Sequence[int]) -> list[float]:
        """Gaussian elimination of a symmetric positive definite system, which needs no pivots."""
        rows = []
        for i in free:
            # Relative to the data, so that it is as firm on any device.
            hold = STIFFNESS[i] * self._squares[i][i] + LEAST_HOLD
            row = [self._squares[i][j] + (hold if i == j else 0.0) for j in free]
            rows.append([*row, self._sums[i] + hold * self._coefficients[i]])
        for i, row in enumerate(rows):
            for other in rows[i + 1 :]:
                factor = other[i] / row[i]
                other[i:] = [a - factor * b for a, b in zip(other[i:], row[i:], strict=True)]
        found = [0.0] * len(rows)
        for i in reversed(range(len(rows))):
            rest = sum(rows[i][j] * found[j] for j in range(i + 1, len(rows)))
            found[i] = (rows[i][-1] - rest) / rows[i][i]
        return found


def untried_step_time() -> StepTimeModel:
    """Returns a model of any device: its costs matter only until the first step."""
    return StepTimeModel(row_s=0.0125, token_s=0.0002)


MIN_RUNNING = 8
"""The least running limit: so few rows share one read of the weights."""
MEMORY_STEPS = 256
"""After so many steps with prompts, one that was too large for the memory may be tried again."""
GAIN = 0.25
"""How far one step moves the running limit: one slow step is noise, five are a change."""
UNIFORM = 0.06
"""Chunks whose sizes vary by a smaller share do not separate a token's cost from the step's."""
PROBE = 1.3
"""The relative length of a chunk that separates them: one in some ten."""
ROW_TARGETS = 1.5
"""Decode steps may take so many times the target: rows share one read of the weights."""
UNTRIED_TARGET_S = 0.1
MOST_TARGETS = 5
"""A step may take so many times the target so that a prompt's chunk is worth its fixed cost."""


class StepPacer:
    """Never preempts a running sequence: a lower limit only keeps new ones waiting. ``target_s``
    ``None``: always ``max_running`` and ``max_prefill_tokens``."""

    def __init__(self, max_running: int, max_prefill_tokens: int, target_s: float | None) -> None:
        self._max_running = max_running
        self._max_prefill_tokens = max_prefill_tokens
        self._fitting_tokens = max_prefill_tokens
        self._num_steps_that_fit = 0
        self._target_s = target_s
        self._running_limit = float(min(MIN_RUNNING, max_running))
        self._chunks = Spread()
        begin_s = UNTRIED_TARGET_S if target_s is None else target_s
        self.step_time = StepTimeModel(
            row_s=begin_s / self._running_limit,
            token_s=begin_s / max(max_prefill_tokens // 4, SMALLEST_CHUNK),
        )

    @property
    def running_limit(self) -> int:
        return self._max_running if self._target_s is None else int(self._running_limit)

    def prefill_tokens(self, num_decode_rows: int) -> int:
        """Returns at least so many that they take as long as the step's fixed cost. Where that cost
        alone takes the target, shorter chunks would make prompts many times slower."""
        if self._target_s is None:
            return self._fitting_tokens
        model = self.step_time
        num_tokens = model.tokens_within(self._target_s, num_decode_rows)
        if model.token_s > 0:
            efficient = (model.fixed_s + model.prompt_s) / model.token_s
            most = model.tokens_within(MOST_TARGETS * self._target_s, num_decode_rows)
            num_tokens = max(num_tokens, min(efficient, most))
        num_tokens = max(num_tokens, SMALLEST_CHUNK)
        if self._chunks.is_settled and self._chunks.is_within(UNIFORM):
            num_tokens *= PROBE
        return int(min(num_tokens, self._fitting_tokens))

    def record_too_large(self, num_prefill_tokens: int) -> None:
        smaller = min(num_prefill_tokens // 2, self._fitting_tokens)
        self._fitting_tokens = max(smaller, SMALLEST_CHUNK)
        self._num_steps_that_fit = 0

    def record(self, *, num_decode_rows: int, num_prefill_tokens: int, step_s: float) -> None:
        """Skips small remainders of prompts, which say little about the speed."""
        if num_prefill_tokens:
            self._record_fit()
        if step_s <= 0 or 0 < num_prefill_tokens < SMALLEST_CHUNK:
            return
        self.step_time.record(num_decode_rows, num_prefill_tokens, step_s)
        if num_prefill_tokens:
            self._chunks.record(num_prefill_tokens)
        if num_decode_rows and self._target_s is not None:
            whole_s = self.step_time.seconds(num_decode_rows, num_prefill_tokens)
            decode_s = self.step_time.seconds(num_decode_rows, 0)
            share = decode_s / whole_s if whole_s > 0 else 1.0
            self._adjust_running_limit(
                num_decode_rows, step_s * share, ROW_TARGETS * self._target_s
            )

    def _record_fit(self) -> None:
        """Raises the bound now and then: other users of the memory may have released some."""
        self._num_steps_that_fit += 1
        if self._num_steps_that_fit % MEMORY_STEPS == 0:
            self._fitting_tokens = min(2 * self._fitting_tokens, self._max_prefill_tokens)

    def _adjust_running_limit(self, num_rows: int, decode_s: float, target_s: float) -> None:
        """Only a step that was too long lowers the limit: the estimate from a few rows is too low.
        It grows in proportion to the rows that ran: the model cannot estimate many more."""
        proportional = num_rows * target_s / max(decode_s, SHORTEST_S)
        bearable = min(proportional, self.step_time.rows_within(target_s))
        if decode_s > target_s or bearable > self._running_limit:
            moved = self._running_limit + GAIN * (bearable - self._running_limit)
            self._running_limit = min(max(moved, MIN_RUNNING), self._max_running)


class StepTimes:
    def __init__(self, limits: SchedulerLimits, prefill_average: PrefillAverage | None) -> None:
        self.pacer = StepPacer(
            limits.max_running, limits.prefill_tokens_per_step, limits.target_step_s
        )
        self.rates = TokenRates()
        self.prefill_average = prefill_average
        self.last_forward_unix_s: float | None = None

    def record(
        self,
        schedule: Schedule,
        *,
        step_s: float,
        now_s: float,
        num_accepted_drafts: int = 0,
        drafting_s: float = 0.0,
    ) -> None:
        """``drafting_s``: the part of ``step_s`` that another model took for its drafts."""
        num_decodes, num_prefill_tokens = schedule.num_decode_rows, schedule.num_prefill_tokens
        self.last_forward_unix_s = time.time()
        self.rates.record(
            now_s=now_s,
            step_s=step_s,
            num_decode_tokens=len(schedule.decodes) + num_accepted_drafts,
            num_prefill_tokens=num_prefill_tokens,
        )
        if schedule.has_image_rows:
            return  # the tower may have run for longer than the decoder
        self.pacer.record(
            num_decode_rows=num_decodes,
            num_prefill_tokens=num_prefill_tokens,
            step_s=step_s - drafting_s,
        )
        if self.prefill_average is not None and not num_decodes:
            spans = ((chunk.start, chunk.end) for chunk in schedule.prefills)
            self.prefill_average.record(spans, step_s)

    def record_in_parts(self, schedule: Schedule, faults: list[StepFault]) -> None:
        """The step's time says nothing about its parts."""
        self.last_forward_unix_s = time.time()
        if schedule.prefills and any(isinstance(fault, OutOfMemoryFault) for fault in faults):
            self.pacer.record_too_large(schedule.num_prefill_tokens)
