"""Keeps a device busy that works by itself, as a GPU does: a step is launched before the tokens of
the one before it are read, and starts from them where they lie on the device. What the host does
between two steps falls into the time that the device computes.

    device   [ step 1 ][ step 2 ][ step 3 ]
    host     launch 2 │ read 1, commit, tell, launch 3 │ read 2, commit, …

That takes a step that can be foreseen: whatever tokens come, the same sequences go on, and none of
them needs the host to choose its next token. Who ends meanwhile leaves a row in the launched step
that is computed for nothing. It may write to a block that has become another's by then, but before
that one does: the device does in order what is launched in order. Imports no torch.
"""

from __future__ import annotations

import logging
from typing import Generic, Protocol, TypeVar

from inference.engine.faults.kinds import StepFault
from inference.engine.sampling.sampled import Sampled
from inference.engine.scheduling.limits import Pace
from inference.engine.scheduling.schedule import Schedule
from inference.engine.scheduling.scheduler import Scheduler
from inference.engine.scheduling.sequence import Sequence
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


class RunAhead(Generic[Step]):
    """Stands between an engine and its executor. At most one step is launched and not read."""

    def __init__(self, executor: LaunchingExecutor[Step], scheduler: Scheduler) -> None:
        self._executor = executor
        self._scheduler = scheduler
        self._launched: tuple[Schedule, Step] | None = None
        self._pace: Pace | None = None
        """Of the step that is scheduled now; steps ahead hold no more."""

    def next_schedule(self, pace: Pace) -> Schedule:
        """The launched step's, while anybody waits for it; else what the scheduler chooses."""
        self._pace = pace
        if self._launched is not None and not self._launched[0].without_ended_rows().is_empty:
            return self._launched[0]
        self._launched = None
        return self._scheduler.schedule(pace)

    @property
    def is_ahead(self) -> bool:
        """Whether ``next_schedule`` will say, or just said, what is launched already."""
        return self._launched is not None

    def execute(self, schedule: Schedule) -> Sampled:
        """As ``Executor.execute``. What follows is launched where ``schedule`` is a whole step: a
        part of one that raised lacks somebody who runs, so that nothing can be foreseen from it.
        Where launching it raises and the device is sound, ``schedule`` is read all the same: the
        next call of ``next_schedule`` tries what follows again, as a step of its own."""
        launched, self._launched = self._launched, None
        step = self._executor.launch(schedule) if launched is None else launched[1]
        following = self._launch_after(step, schedule)
        sampled = self._executor.read(step)
        self._launched = following
        return sampled

    def _launch_after(self, step: Step, schedule: Schedule) -> tuple[Schedule, Step] | None:
        if schedule.num_scored_tokens or not all(map(self._executor.is_settled, schedule.sampled)):
            return None
        assert self._pace is not None, "there was a schedule"
        foreseen = self._scheduler.foresee(schedule, self._pace)
        if foreseen is None:
            return None
        try:
            return foreseen, contained(self._executor.launch, foreseen, step)
        except Exception as error:  # it is of the next step, not of the one that runs
            fault = self._executor.recover(error)
            if not fault.is_device_sound:
                raise fault from error
            log.warning("a step ahead could not be launched (%s)", type(fault).__name__)
            return None
