"""Keeps a device busy that works by itself, as a GPU does: a step is launched before the tokens of
the one before it are read, and starts from them where they lie on the device. What the host does
between two steps falls into the time that the device computes.

    device   [ step 1 ][ step 2 ][ step 3 ]
    host     launch 2 │ read 1, commit, emit, launch 3 │ read 2, commit, …

That needs a step that can be scheduled ahead: whatever tokens come, the same sequences continue,
and none of them needs the host to choose its next token. A sequence that ends meanwhile leaves a
row in the launched step that is computed for nothing. Its block may belong to another sequence by
then, but the row writes first: the device executes in launch order. Imports no torch.
"""

from __future__ import annotations

import logging
from typing import Generic, Protocol, TypeVar

from inference.engine.emission import Sampled
from inference.engine.faults.kinds import StepFault
from inference.engine.scheduling.schedule import Schedule
from inference.engine.scheduling.scheduler import Scheduler
from inference.engine.scheduling.sequence import Sequence
from inference.engine.scheduling.waiting_queue import Pace
from inference.supervised_threads import contained

log = logging.getLogger(__name__)

Step = TypeVar("Step")
"""What an executor knows of a step that it has launched."""


class LaunchingExecutor(Protocol[Step]):
    """An ``Executor`` whose ``execute`` has two halves."""

    def recover(self, error: Exception) -> StepFault: ...

    def launch(self, schedule: Schedule, after: Step | None = None) -> Step:
        """Queue the step's work on the device and wait for nothing. ``after``: a step that has not
        been read, whose tokens the rows of this one start from; its sequences are settled."""
        ...

    def read(self, step: Step) -> Sampled:
        """Wait for the step, whatever has been launched after it."""
        ...

    def is_settled(self, sequence: Sequence) -> bool:
        """Whether the device alone can choose its next token and the one after."""
        ...


class StepsAhead(Protocol):
    """What an engine asks of whatever has steps under way before their turn."""

    @property
    def is_ahead(self) -> bool:
        """Whether the step that ``next_schedule`` returns, or just returned, was under way before
        the call."""
        ...

    def next_schedule(self, pace: Pace) -> Schedule:
        """The next step to ``execute``; an empty one: there is nothing to compute."""
        ...

    def execute(self, schedule: Schedule) -> Sampled:
        """Does what ``Executor.execute`` does."""
        ...


class RunAhead(Generic[Step]):
    """Stands between an engine and its executor. At most one step is launched and not read."""

    def __init__(self, executor: LaunchingExecutor[Step], scheduler: Scheduler) -> None:
        self.executor = executor
        self._scheduler = scheduler
        self._launched: tuple[Schedule, Step] | None = None
        self._pace: Pace | None = None
        """The pace of the step that is scheduled now; steps ahead hold no more."""

    def next_schedule(self, pace: Pace) -> Schedule:
        """The launched step's, while anybody waits for it; else what the scheduler chooses."""
        self._pace = pace
        if self._launched is not None and not self._launched[0].without_ended_rows().is_empty:
            return self._launched[0]
        self._launched = None
        return self._scheduler.schedule(pace)

    @property
    def is_ahead(self) -> bool:
        """Whether ``next_schedule`` will return, or just returned, a launched step."""
        return self._launched is not None

    def execute(self, schedule: Schedule) -> Sampled:
        """Does what ``Executor.execute`` does. Launches the following step where ``schedule`` is a
        whole step: a part of one that raised lacks running sequences, so no step can be scheduled
        ahead of it. Where that launch raises and the device is sound, ``schedule`` is read all the
        same: the next call of ``next_schedule`` tries the following step again by itself."""
        launched, self._launched = self._launched, None
        step = self.executor.launch(schedule) if launched is None else launched[1]
        following = self._launch_after(step, schedule)
        sampled = self.executor.read(step)
        self._launched = following
        return sampled

    def _launch_after(self, step: Step, schedule: Schedule) -> tuple[Schedule, Step] | None:
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
