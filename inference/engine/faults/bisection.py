"""Isolates the rows that make a step raise, by bisection: runs the step again in smaller and
smaller parts until those that raise cannot be divided any more.

    decodes a b c d, chunk e ─raises─▶ a b c d ─runs
                                       chunk e ─raises─▶ first half of e ─runs: the rest is next

A step that raised has changed nothing (see ``Executor``), so its parts can be run as if it had
never been tried. ``NumericalWatch`` decides when NaN logits are the device's fault rather than a
row's. Knows neither tensors nor queues.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from inference.engine.faults.kinds import DeviceFault, OutOfMemoryFault, StepFault
from inference.engine.step import SMALLEST_CHUNK, PrefillChunk, Schedule
from inference.supervised_threads import contained

log = logging.getLogger(__name__)

Part = TypeVar("Part")
Result = TypeVar("Result")


@dataclass(slots=True)
class Outcome(Generic[Part, Result]):
    """A step's parts, in its own order. In an undisturbed one ``done`` is the whole."""

    done: list[tuple[Part, Result]] = field(default_factory=list)
    failed: list[tuple[Part, StepFault]] = field(default_factory=list)
    """Parts of one row that raised, with their fault."""
    faults: list[StepFault] = field(default_factory=list)
    """The fault of every attempt, also of those whose parts then ran."""


def isolate_faults(
    whole: Part,
    run: Callable[[Part], Result],
    recover: Callable[[Exception], StepFault],
    divide: Callable[[Part, StepFault], list[Part]],
) -> Outcome[Part, Result]:
    """``divide``: smaller parts to try instead; none: the part is to fail. Raises ``StepFault``
    where the device is not sound."""
    outcome: Outcome[Part, Result] = Outcome()
    open_parts = [whole]
    while open_parts:
        part = open_parts.pop(0)
        try:
            result = contained(run, part)
        except Exception as error:  # any of the device's; recover classifies it
            fault = recover(error)
            is_first = not outcome.faults
            log.error("a step raised (%s)", type(fault).__name__, exc_info=is_first and error)
            if not fault.is_device_sound:
                raise fault from error
        else:
            outcome.done.append((part, result))
            continue
        outcome.faults.append(fault)
        if smaller := divide(part, fault):
            open_parts[:0] = smaller
        else:
            outcome.failed.append((part, fault))
    return outcome


def divide_schedule(schedule: Schedule, fault: StepFault) -> list[Schedule]:
    """Leaves out sequences that have ended, separates the decodes from the chunks, then halves
    either. A chunk that does not fit is made shorter, and the next steps schedule the rest of it.
    Drafts are left out, which changes no answer."""
    if schedule.has_ended_rows:
        return [schedule.without_ended_rows()]
    if schedule.has_lost_rows:
        return [replace(schedule, has_lost_rows=False)]
    if schedule.drafts:
        return [Schedule(decodes=schedule.decodes)]
    decodes, prefills = schedule.decodes, schedule.prefills
    if decodes and prefills:
        return [Schedule(decodes=decodes), Schedule(prefills=prefills)]
    if len(decodes) > 1:
        return [Schedule(decodes=half) for half in halves(decodes)]
    if len(prefills) > 1:
        return [Schedule(prefills=half) for half in halves(prefills)]
    if prefills and isinstance(fault, OutOfMemoryFault):
        (chunk,) = prefills
        num_tokens = chunk.end - chunk.start
        if num_tokens > SMALLEST_CHUNK:
            end = chunk.start + max(num_tokens // 2, SMALLEST_CHUNK)
            shorter = PrefillChunk(chunk.sequence, chunk.start, end, is_last=False)
            return [Schedule(prefills=[shorter])]
    return []


Item = TypeVar("Item")


def halves(items: list[Item]) -> list[list[Item]]:
    middle = len(items) // 2
    return [items[:middle], items[middle:]]


SUSPICIOUS_STEPS = 8
"""Each ends every sequence that it samples, so it takes as many requests, all of them failing and
none between them that succeeds."""


class NumericalWatch:
    def __init__(self) -> None:
        self._num_steps = 0

    def record(self, *, num_rows: int, num_failed: int) -> None:
        """Records one step. Raises ``DeviceFault`` when no row has been a number for too long."""
        if num_rows == 0:
            return
        self._num_steps = self._num_steps + 1 if num_failed == num_rows else 0
        if self._num_steps >= SUSPICIOUS_STEPS:
            raise DeviceFault(f"no row was a number in {self._num_steps} steps in a row")
