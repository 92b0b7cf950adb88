"""Keeps the stages of a model at work side by side: sequences take part in as many groups as there
are stages, and each group's next step begins when its tokens are known.

    stage 1   [ A ][ B ][ A ][ B ]…      A begins its next step once its last stage is done
    stage 2        [ A ][ B ][ A ]…      and its tokens are sampled

A group is the sequences of one step: none of them is in another step that is under way. It has an
even share of those that decode, so groups stay alike as sequences come and end. All stages compute
steps in the order in which they began. A sequence that ends meanwhile is computed for nothing: its
blocks may belong to another by then, whose step comes after. Imports no torch.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from inference.engine.emission import Sampled
from inference.engine.scheduling.schedule import Schedule
from inference.engine.scheduling.scheduler import Scheduler
from inference.engine.scheduling.waiting_queue import Pace
from inference.supervised_threads import contained

Step = TypeVar("Step")
"""What an executor knows of a step that it has begun."""


class BeginningExecutor(Protocol[Step]):
    """An ``Executor`` whose ``execute`` has two halves."""

    def execute(self, schedule: Schedule) -> Sampled: ...

    def begin(self, schedule: Schedule) -> Step:
        """Computes the first stage and waits for no other."""
        ...

    def finish(self, step: Step, live: Schedule) -> Sampled:
        """Waits for the step, and samples ``live``: its schedule without ended sequences."""
        ...

    def give_up(self, step: Step) -> None:
        """Gives the step up, in place of ``finish``: all of its sequences have ended."""
        ...


@dataclass(slots=True)
class _Begun(Generic[Step]):
    live: Schedule
    """The schedule without the sequences that have ended since."""
    step: Step | None
    error: Exception | None = None
    """The error that ``begin`` raised for the same sequences."""


class StepGroups(Generic[Step]):
    """Stands between an engine and its executor: see ``run_ahead.StepsAhead``."""

    def __init__(
        self, executor: BeginningExecutor[Step], scheduler: Scheduler, num_groups: int
    ) -> None:
        self.executor = executor
        self._scheduler = scheduler
        self._num_groups = num_groups
        self._begun: deque[_Begun[Step]] = deque()
        """The oldest first."""
        self.is_ahead = False

    def next_schedule(self, pace: Pace) -> Schedule:
        """The oldest step's, once all groups that can have begun one."""
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
        """Does what ``Executor.execute`` does. A part of a step that raised runs by itself."""
        if not self._begun or self._begun[0].live is not schedule:
            return self.executor.execute(schedule)
        begun = self._begun.popleft()
        if begun.error is not None:
            raise begun.error
        if begun.step is None:  # it did not begin with sequences that have ended since
            return self.executor.execute(schedule)
        return self.executor.finish(begun.step, schedule)

    def _begin(self, schedule: Schedule) -> _Begun[Step]:
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
