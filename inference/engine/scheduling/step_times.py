"""What becomes of how long a step took: how much the next may hold, what the stats show, and how
fast prompts go on average. Times are arguments, but for the wall clock of the last forward pass."""

from __future__ import annotations

import time

from inference.engine.faults.kinds import OutOfMemoryFault, StepFault
from inference.engine.scheduling.limits import SchedulerLimits
from inference.engine.scheduling.rates import PrefillAverage, TokenRates
from inference.engine.scheduling.schedule import Schedule
from inference.engine.scheduling.step_pacer import StepPacer


class StepTimes:
    """``prefill_average`` ``None``: nobody asks for one."""

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
        num_run_tokens: int = 0,
        drafting_s: float = 0.0,
    ) -> None:
        """Records a step that ran whole. ``num_run_tokens``: drafts that turned out right.
        ``drafting_s``: the part of ``step_s`` that another model took for its drafts."""
        num_decodes, num_prefill_tokens = schedule.num_decode_rows, schedule.num_prefill_tokens
        self.last_forward_unix_s = time.time()
        self.rates.record(
            now_s=now_s,
            step_s=step_s,
            num_decode_tokens=len(schedule.decodes) + num_run_tokens,
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
        """Records a step that was run in parts, whose time says nothing of speed."""
        self.last_forward_unix_s = time.time()
        if schedule.prefills and any(isinstance(fault, OutOfMemoryFault) for fault in faults):
            self.pacer.record_too_large(schedule.num_prefill_tokens)
