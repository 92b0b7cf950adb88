"""Where a neuron's stages were on the gateway's clock, whatever the neuron reports."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from inference.gateway.tracing.spans import (
    DECODE,
    ENGINE,
    PREFILL,
    PREPARE,
    QUEUE,
    Stage,
    reported_stages,
    timed_stages,
)
from inference.protocol.engine import SequenceTiming
from inference.protocol.events import StageTimes

MS = st.floats(0, 1e12)
MAYBE_MS = st.none() | MS


def times(total_ms: float, prepare_ms: float, **others: float | None) -> StageTimes:
    return StageTimes(request_id="r", total_ms=total_ms, prepare_ms=prepare_ms, **others)


def test_what_the_neuron_did_not_take_was_two_equal_ways() -> None:
    whole = times(6000.0, 1000.0, queue_ms=2000.0, prefill_ms=1000.0, decode_ms=2000.0)
    assert reported_stages(whole, sent_s=100.0, ended_s=108.0) == [
        Stage(PREPARE, 101.0, 102.0),
        Stage(QUEUE, 102.0, 104.0),
        Stage(PREFILL, 104.0, 105.0),
        Stage(DECODE, 105.0, 107.0),
    ]


def test_the_stages_that_it_came_to() -> None:
    for found, names in (
        (times(1000.0, 1000.0), [PREPARE]),
        (times(2000.0, 1000.0, queue_ms=1000.0), [PREPARE, QUEUE]),
        (times(2000.0, 1000.0), [PREPARE, ENGINE]),
    ):
        assert [one.name for one in reported_stages(found, sent_s=1.0, ended_s=3.0)] == names


@given(found=st.builds(times, MS, MS, queue_ms=MAYBE_MS, prefill_ms=MAYBE_MS, decode_ms=MAYBE_MS))
def test_no_report_leaves_the_attempt(found: StageTimes) -> None:
    stages = reported_stages(found, sent_s=5.0, ended_s=9.0)
    assert stages[0].start_s >= 5.0 and stages[-1].end_s <= 9.0
    assert all(one.start_s <= one.end_s for one in stages)
    assert all(one.end_s == after.start_s for one, after in itertools.pairwise(stages))


def test_without_a_report_they_follow_the_acceptance() -> None:
    timing = SequenceTiming(queue_ms=500.0, prefill_ms=1000.0, decode_ms=1500.0, prefill_tokens=4)
    assert timed_stages(timing, sent_s=1.0, accepted_s=2.0, ended_s=6.0) == [
        Stage(PREPARE, 1.0, 2.0),
        Stage(QUEUE, 2.0, 2.5),
        Stage(PREFILL, 2.5, 3.5),
        Stage(DECODE, 3.5, 5.0),
    ]
    assert timed_stages(None, sent_s=1.0, accepted_s=2.0, ended_s=6.0) == [Stage(PREPARE, 1.0, 2.0)]
    assert timed_stages(None, sent_s=1.0, accepted_s=None, ended_s=6.0) == []
