"""Measures steps and bounds the next one.

    StepTimes ─┬▶ StepPacer        limits: how many sequences run, how many prompt tokens join them
               ├▶ TokenRates       tokens per second over the last few seconds
               └▶ PrefillAverage   prompts, over the last tens of thousands of tokens

Cancellations take effect between steps, and are to free their sequence within 200 ms: so a step
should take a tenth of a second, however many rows that is on this machine. On a GPU the operator's
whole limit fits; on two CPU cores a step of 256 rows takes 0.4 s, and a few dozen rows reach the
same tokens per second. Times are arguments, except the wall clock of the last forward pass.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

from inference.engine.faults.kinds import OutOfMemoryFault, StepFault
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from inference.engine.step import SMALLEST_CHUNK, Schedule
from inference.engine.step_time import SHORTEST_S, Spread, StepTimeModel
from inference.protocol.load import PrefillSpeed

WINDOW_S = 10.0
AVERAGED_TOKENS = 32_768
"""A token's weight in the average decays over so many later ones."""


class TokenRates:
    """Tokens of the window divided by the time of its steps: an idle engine keeps its last rates
    until the window has passed, and then has 0."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, float, int, int]] = deque()
        self._decode_s = self._prefill_s = 0.0
        self._num_decode = self._num_prefill = 0

    def record(
        self, *, now_s: float, step_s: float, num_decode_tokens: int, num_prefill_tokens: int
    ) -> None:
        self._add(step_s, num_decode_tokens, num_prefill_tokens)
        self._steps.append((now_s, step_s, num_decode_tokens, num_prefill_tokens))
        self._forget_before(now_s - WINDOW_S)

    def decode_tokens_per_s(self, now_s: float) -> float:
        self._forget_before(now_s - WINDOW_S)
        return self._num_decode / self._decode_s if self._decode_s > 0 else 0.0

    def prefill_tokens_per_s(self, now_s: float) -> float:
        self._forget_before(now_s - WINDOW_S)
        return self._num_prefill / self._prefill_s if self._prefill_s > 0 else 0.0

    def _add(self, step_s: float, num_decode: int, num_prefill: int) -> None:
        """A mixed step's time counts for both."""
        if num_decode:
            self._decode_s += step_s
            self._num_decode += num_decode
        if num_prefill:
            self._prefill_s += step_s
            self._num_prefill += num_prefill

    def _forget_before(self, then_s: float) -> None:
        while self._steps and self._steps[0][0] < then_s:
            _, step_s, num_decode, num_prefill = self._steps.popleft()
            self._add(-step_s, -num_decode, -num_prefill)
        if not self._steps:
            # Sums of floats need not return to exactly 0.
            self._decode_s = self._prefill_s = 0.0


class PrefillAverage:
    """The prefill speed, kept as a ratio to the formula's estimate: so short and long prompts, and
    partly cached ones, average into one speed that holds at any length.

    Steps that also decode do not count: their time is not the prompt's alone.
    """

    def __init__(self, start: PrefillSpeed) -> None:
        self._start = start
        self._slowdown = 1.0
        self.speed = start

    def record(self, spans: Iterable[tuple[int, int]], step_s: float) -> None:
        """``spans``: the ``[start, end)`` of each prompt in a step of nothing else."""
        num_tokens, expected_s = 0, 0.0
        for start, end in spans:
            num_tokens += end - start
            expected_s += self._start.span_s(start, end)
        if num_tokens < SMALLEST_CHUNK or expected_s <= 0:
            return  # small remainders say little about the speed
        gain = num_tokens / AVERAGED_TOKENS
        self._slowdown += min(gain, 1.0) * (step_s / expected_s - self._slowdown)
        self.speed = self._start.slowed(self._slowdown)


MIN_RUNNING = 8
"""The least running limit: so few rows share one read of the weights."""
MEMORY_STEPS = 256
"""After so many steps with prompts, one that was too large for the memory may be tried again."""
GAIN = 0.25
"""How far one step moves the running limit: one slow step is noise, five are a change."""
UNIFORM = 0.06
"""Chunks whose sizes vary by less, relative to their mean, do not separate a token's cost from that
of a step with prompts."""
PROBE = 1.3
"""The relative length of a chunk that separates them: one in some ten."""
UNTRIED_TARGET_S = 0.1
"""The first guess of a step's time where no target is set."""
MOST_TARGETS = 5
"""A step may take so many times the target so that a prompt's chunk is worth its fixed cost."""


class StepPacer:
    """Bounds steps by the ``StepTimeModel`` of this device. Never preempts a running sequence: a
    lower limit only keeps new ones waiting.

    ``target_s`` ``None``: always ``max_running`` and ``max_prefill_tokens``. Either way
    ``step_time`` is fitted to the steps recorded here, and others may read it.
    """

    def __init__(self, max_running: int, max_prefill_tokens: int, target_s: float | None) -> None:
        self._max_running = max_running
        self._max_prefill_tokens = max_prefill_tokens
        self._fitting_tokens = max_prefill_tokens
        """Prompt tokens of one step that are known to fit the memory."""
        self._num_steps_that_fit = 0
        self._target_s = target_s
        self._running_limit = float(min(MIN_RUNNING, max_running))
        """The estimated number of rows of a step of ``target_s``."""
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
        """Returns the prompt tokens that a step has time for beside its decode rows, at least so
        many that they take as long as the step's fixed cost. Where that cost alone takes the
        target, shorter chunks would make steps little shorter and prompts many times slower."""
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
            self._adjust_running_limit(num_decode_rows, step_s * share, self._target_s)

    def _record_fit(self) -> None:
        """Raises the bound now and then: other users of the memory may have released some."""
        self._num_steps_that_fit += 1
        if self._num_steps_that_fit % MEMORY_STEPS == 0:
            self._fitting_tokens = min(2 * self._fitting_tokens, self._max_prefill_tokens)

    def _adjust_running_limit(self, num_rows: int, decode_s: float, target_s: float) -> None:
        """Only a step that was too long lowers the limit: the estimate from a few rows, which cost
        more each, is too low. The limit grows in proportion to the rows that ran, as the model
        cannot estimate many more rows than ever ran."""
        proportional = num_rows * target_s / max(decode_s, SHORTEST_S)
        bearable = min(proportional, self.step_time.rows_within(target_s))
        if decode_s > target_s or bearable > self._running_limit:
            moved = self._running_limit + GAIN * (bearable - self._running_limit)
            self._running_limit = min(max(moved, MIN_RUNNING), self._max_running)


class StepTimes:
    """``prefill_average`` ``None``: it is not measured."""

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
        """Records a step that ran whole. ``drafting_s``: the part of ``step_s`` that another model
        took for its drafts."""
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
        """Records a step that was run in parts after ``faults``; its time says nothing."""
        self.last_forward_unix_s = time.time()
        if schedule.prefills and any(isinstance(fault, OutOfMemoryFault) for fault in faults):
            self.pacer.record_too_large(schedule.num_prefill_tokens)
