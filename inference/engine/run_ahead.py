"""Asynchronous scheduling: ``RunAhead`` keeps a GPU busy, ``StepGroups`` the stages of a model. A
sequence that ends meanwhile leaves a row that is computed for nothing; its block may belong to
another sequence by then, whose step comes after. Imports no torch."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from inference.engine.pace import StepPacer
from inference.engine.scheduler import Scheduler
from inference.engine.step import Sampled, Schedule
from inference.supervised_threads import contained

if TYPE_CHECKING:
    from inference.engine.divided.staged_model import BegunStep, StagedExecutor
    from inference.engine.executor import LaunchedStep, TensorExecutor

log = logging.getLogger(__name__)


class RunAhead:
    """Launches a step before the tokens of the one before it are read; at most one is unread.

    device   [ step 1 ][ step 2 ][ step 3 ]
    host     launch 2 │ read 1, commit, emit, launch 3 │ read 2, commit, …

    Whatever tokens come, the same sequences must continue, without the host choosing a token.
    """

    def __init__(self, executor: TensorExecutor, scheduler: Scheduler) -> None:
        self.executor = executor
        self._scheduler = scheduler
        self._launched: tuple[Schedule, LaunchedStep] | None = None
        self._pace: StepPacer | None = None
        """The pace of the step that is scheduled now; it also bounds the step ahead."""

    def next_schedule(self, pace: StepPacer) -> Schedule:
        """Returns the launched step's schedule while any of its sequences lives, else a new one."""
        self._pace = pace
        if self._launched is not None and not self._launched[0].without_ended_rows().is_empty:
            return self._launched[0]
        self._launched = None
        return self._scheduler.schedule(pace)

    @property
    def is_ahead(self) -> bool:
        """Whether the schedule that ``next_schedule`` returned was under way before."""
        return self._launched is not None

    def execute(self, schedule: Schedule) -> Sampled:
        """Launches the following step where ``schedule`` is a whole step: a part of one that raised
        lacks running sequences. Where that launch raises and the device is sound, the next call of
        ``next_schedule`` tries it again."""
        launched, self._launched = self._launched, None
        step = self.executor.launch(schedule) if launched is None else launched[1]
        following = self._launch_after(step, schedule)
        sampled = self.executor.read(step)
        self._launched = following
        return sampled

    def _launch_after(
        self, step: LaunchedStep, schedule: Schedule
    ) -> tuple[Schedule, LaunchedStep] | None:
        if schedule.num_scored_tokens or not all(map(self.executor.is_settled, schedule.sampled)):
            return None
        assert self._pace is not None, "there was a schedule"
        following_schedule = self._scheduler.schedule_ahead(schedule, self._pace)
        if following_schedule is None:
            return None
        try:
            return following_schedule, contained(self.executor.launch, following_schedule, step)
        except Exception as error:  # it is of the next step, not of the one that runs
            fault = self.executor.recover(error)
            if not fault.is_device_sound:
                raise fault from error
            log.warning("a step ahead could not be launched (%s)", type(fault).__name__)
            return None


@dataclass(slots=True)
class _Begun:
    live: Schedule
    step: BegunStep | None
    error: Exception | None = None


class StepGroups:
    """Keeps the stages of a model at work side by side, in as many groups of sequences.

    stage 1   [ A ][ B ][ A ][ B ]…      A begins its next step once its last stage is done
    stage 2        [ A ][ B ][ A ]…      and its tokens are sampled

    A group has an even share of the decoding sequences, so groups stay alike as sequences come and
    end. All stages compute steps in the order in which they began.
    """

    def __init__(self, executor: StagedExecutor, scheduler: Scheduler, num_groups: int) -> None:
        self.executor = executor
        self._scheduler = scheduler
        self._num_groups = num_groups
        self._begun: deque[_Begun] = deque()
        self.is_ahead = False

    def next_schedule(self, pace: StepPacer) -> Schedule:
        """Begins a step of each group that can, and returns the oldest step's schedule."""
        self._drop_ended()
        self.is_ahead = bool(self._begun)
        while len(self._begun) < self._num_groups:
            busy = frozenset(s for begun in self._begun for s in begun.live.sequences)
            schedule = self._scheduler.schedule(pace, busy, self._num_groups)
            if schedule.is_empty:
                break
            self._begun.append(self._begin(schedule))
        return self._begun[0].live if self._begun else Schedule()

    def execute(self, schedule: Schedule) -> Sampled:
        """A part of a step that raised runs by itself."""
        if not self._begun or self._begun[0].live is not schedule:
            return self.executor.execute(schedule)
        begun = self._begun.popleft()
        if begun.error is not None:
            raise begun.error
        if begun.step is None:  # it did not begin with sequences that have ended since
            return self.executor.execute(schedule)
        return self.executor.finish(begun.step, schedule)

    def _begin(self, schedule: Schedule) -> _Begun:
        try:
            return _Begun(schedule, contained(self.executor.begin, schedule))
        except Exception as error:  # noqa: BLE001 -- execute raises it, when its turn has come
            return _Begun(schedule, None, error)

    def _drop_ended(self) -> None:
        for begun in list(self._begun):
            if begun.live.has_ended_rows:
                begun.live = replace(begun.live.without_ended_rows(), has_lost_rows=True)
                begun.error = None
            if begun.live.is_empty:
                self._begun.remove(begun)
                if begun.step is not None:
                    self.executor.give_up(begun.step)


StepsAhead: TypeAlias = RunAhead | StepGroups
