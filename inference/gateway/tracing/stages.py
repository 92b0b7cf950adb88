"""Locates the stages of an attempt on this gateway's clock. Pure: times are arguments.

gateway   sent ─────────────────────────────────────────────▶ ended
neuron         arrived ─prepare─queue─prefill─decode─▶ end        its duration, not its clock
            ◀──▶                                        ◀──▶
             the rest is taken to be two equal ways between the hosts
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from inference.protocol.engine import SequenceTiming
from inference.protocol.events import StageTimes

PREPARE, QUEUE, PREFILL, DECODE = (
    "neuron prepare",
    "engine queue",
    "engine prefill",
    "engine decode",
)
ENGINE = "engine"
"""What the engine did, where its stages are not known: embeddings, and engines that died."""


class Stage(NamedTuple):
    name: str
    start_s: float
    end_s: float


def reported_stages(times: StageTimes, *, sent_s: float, ended_s: float) -> list[Stage]:
    """None ends after ``ended_s``, whatever the neuron reports."""
    way_s = max(0.0, ended_s - sent_s - times.total_ms / 1000) / 2
    by_name = {
        PREPARE: times.prepare_ms,
        QUEUE: times.queue_ms,
        PREFILL: times.prefill_ms,
        DECODE: times.decode_ms,
    }
    rest_ms = times.total_ms - times.prepare_ms
    if times.queue_ms is None and rest_ms > 0:
        by_name[ENGINE] = rest_ms
    return list(_in_a_row(by_name, sent_s + way_s, ended_s))


def timed_stages(
    timing: SequenceTiming | None, *, sent_s: float, accepted_s: float | None, ended_s: float
) -> list[Stage]:
    """Returns the stages of a neuron that reports no ``StageTimes``, by the time at which its
    ``Accepted`` came. An ``accepted_s`` of ``None`` means that it did not come: there are no
    stages."""
    if accepted_s is None:
        return []
    prepare_ms = 1000 * (accepted_s - sent_s)
    by_name: dict[str, float | None] = {PREPARE: prepare_ms}
    if timing is not None:
        by_name |= {
            QUEUE: timing.queue_ms,
            PREFILL: timing.prefill_ms,
            DECODE: timing.decode_ms,
        }
    return list(_in_a_row(by_name, sent_s, ended_s))


def _in_a_row(by_name: dict[str, float | None], at_s: float, ended_s: float) -> Iterator[Stage]:
    at_s = min(at_s, ended_s)
    for name, duration_ms in by_name.items():
        if duration_ms is not None:
            end_s = min(at_s + duration_ms / 1000, ended_s)
            yield Stage(name, at_s, end_s)
            at_s = end_s
