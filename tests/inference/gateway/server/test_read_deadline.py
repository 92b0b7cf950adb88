"""When a connection is closed for what its client does not send."""

from __future__ import annotations

from inference.gateway.server.http_channel import (
    MAX_BODY_S,
    MIN_BODY_BYTES,
    ReadDeadline,
    Reading,
    ReadTimeouts,
)

TIMEOUTS = ReadTimeouts(head_s=10, body_s=20, idle_s=75)


def test_a_head_has_one_deadline_however_it_comes() -> None:
    deadline = ReadDeadline(TIMEOUTS, 0)
    assert not deadline.is_overdue(74.9) and deadline.is_overdue(75)
    deadline.begin_head(100)
    deadline.receive(1)
    assert not deadline.is_overdue(109.9)
    assert deadline.is_overdue(110)


def test_a_body_must_continue() -> None:
    deadline = ReadDeadline(TIMEOUTS, 0)
    deadline.begin_body(0)
    for period in range(1, 100):
        deadline.receive(MIN_BODY_BYTES)
        assert not deadline.is_overdue(20 * period), "slow, and it continues"
    deadline.receive(MIN_BODY_BYTES - 1)
    assert deadline.is_overdue(2000)


def test_an_answer_has_no_deadline_and_then_the_connection_waits() -> None:
    deadline = ReadDeadline(TIMEOUTS, 0)
    deadline.stop()
    assert deadline.reading is Reading.ANSWERING
    assert not deadline.is_overdue(1e9)
    deadline.wait(1000)
    assert not deadline.is_overdue(1074) and deadline.is_overdue(1075)


def test_a_body_has_a_total_deadline_that_the_servers_pauses_extend() -> None:
    """A body of 4 KiB each 20 s took without end."""
    deadline = ReadDeadline(TIMEOUTS, 0)
    deadline.begin_head(0)
    deadline.begin_body(0)
    now_s = 0.0
    while True:
        now_s += TIMEOUTS.body_s
        deadline.receive(10 * MIN_BODY_BYTES)
        if deadline.is_overdue(now_s):
            break
        assert now_s < MAX_BODY_S
    assert now_s == MAX_BODY_S
    deadline.wait(now_s)
    deadline.begin_head(now_s)
    deadline.begin_body(now_s)
    deadline.stop()
    deadline.begin_body(now_s + 10 * MAX_BODY_S)
    deadline.receive(MIN_BODY_BYTES)
    assert not deadline.is_overdue(now_s + 10 * MAX_BODY_S + TIMEOUTS.body_s)
