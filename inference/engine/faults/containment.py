"""Finds whose fault a step's exception is: runs the step again in smaller and smaller parts, until
those that raise cannot be divided any more.

    decodes a b c d, chunk e ─raises─▶ a b c d ─runs
                                       chunk e ─raises─▶ first half of e ─runs: the rest is next

A step that raised has changed nothing (see ``Executor``), so its parts can be run as if it had
never been tried. Knows neither tensors nor queues.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from inference.engine.faults.kinds import OutOfMemoryFault, StepFault
from inference.engine.scheduling.chunks import SMALLEST_CHUNK
from inference.engine.scheduling.schedule import PrefillChunk, Schedule
from inference.supervised_threads import contained

log = logging.getLogger(__name__)

Part = TypeVar("Part")
Result = TypeVar("Result")


@dataclass(slots=True)
class Outcome(Generic[Part, Result]):
    """A step's parts, in its own order. In an undisturbed one ``done`` is the whole."""

    done: list[tuple[Part, Result]] = field(default_factory=list)
    failed: list[tuple[Part, StepFault]] = field(default_factory=list)
    """Parts of one row that raised, and what they raised."""
    faults: list[StepFault] = field(default_factory=list)
    """What every attempt raised, also those whose parts then ran."""


def contain(
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
        except Exception as error:  # whatever it is: the device has it, and recover says which
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
    """Decodes go on while the chunks beside them are looked at; then halves of either. A chunk
    that does not fit is made shorter: the rest of it is scheduled in the next steps. Drafts are
    left out, which changes no answer."""
    if schedule.has_ended_rows:
        return [schedule.without_ended_rows()]
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
