"""The events between work and the clients that watch it."""

from __future__ import annotations

import asyncio

import pytest

from inference.gateway.responses import background
from inference.gateway.responses.background import EventsGoneError, FrameLog


def never() -> None:
    raise AssertionError("nobody was too slow")


def frames(*numbers: int) -> bytes:
    return b"".join(b"data: %d\n\n" % number for number in numbers)


async def test_everything_that_is_there_comes_as_one_and_the_end_is_reported() -> None:
    log = FrameLog()
    watch = log.watch(never)
    log.put(frames(0))
    log.put(b"")
    log.put(frames(1, 2))
    assert await watch.take() == (frames(0, 1, 2), False)
    waiting = asyncio.create_task(watch.take())
    await asyncio.sleep(0)
    log.put(frames(3))
    assert await waiting == (frames(3), False)
    log.put(frames(4))
    log.close()
    assert await watch.take() == (frames(4), True)


async def test_from_any_event_on() -> None:
    log = FrameLog()
    log.put(frames(0, 1, 2, 3))
    assert log.end == 4
    for after in range(-1, 3):
        expected = frames(*range(after + 1, 4))
        assert await log.watch(never, after=after).take() == (expected, False)
    ahead = log.watch(never, after=5)
    waiting = asyncio.create_task(ahead.take())
    log.put(frames(4, 5))
    await asyncio.sleep(0)
    assert not waiting.done(), "none of them is after the fifth"
    log.put(frames(6))
    assert await waiting == (frames(6), False)


async def test_what_is_over_still_reports_its_end() -> None:
    log = FrameLog()
    log.put(frames(0, 1))
    log.close()
    assert await log.watch(never, after=0).take() == (frames(1), True)
    assert await log.watch(never, after=7).take() == (b"", True)


async def test_who_does_not_read_is_given_up_and_the_work_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background, "MAX_KEPT_BYTES", 3 * len(frames(0)))
    aborted: list[str] = []
    log = FrameLog()
    log.watch(lambda: aborted.append("slow"))
    reader = log.watch(lambda: aborted.append("reader"))
    for number in range(5):
        log.put(frames(number))
        assert await reader.take() == (frames(number), False)
    assert aborted == ["slow"]
    with pytest.raises(EventsGoneError) as gone:
        log.watch(never, after=0)
    assert gone.value.first == 2
    assert await log.watch(never, after=1).take() == (frames(2, 3, 4), False)


async def test_who_left_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "MAX_KEPT_BYTES", 1)
    log = FrameLog()
    log.watch(never).leave()
    log.put(frames(0, 1, 2))
    assert log.end == 3
