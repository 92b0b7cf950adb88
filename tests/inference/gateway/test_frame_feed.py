"""The feed between work and the one client that watches it."""

from __future__ import annotations

import asyncio

import pytest

from inference.gateway import frame_feed
from inference.gateway.frame_feed import FrameFeed


def never() -> None:
    raise AssertionError("nobody was too slow")


async def test_everything_that_is_there_comes_as_one_and_the_end_is_told() -> None:
    feed = FrameFeed(never)
    feed.put(b"a")
    feed.put(b"")
    feed.put(b"b")
    assert await feed.take() == (b"ab", False)
    waiting = asyncio.create_task(feed.take())
    await asyncio.sleep(0)
    feed.put(b"c")
    assert await waiting == (b"c", False)
    feed.put(b"d")
    feed.close()
    assert await feed.take() == (b"d", True)


async def test_who_does_not_read_is_given_up_and_the_work_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frame_feed, "MAX_UNREAD_BYTES", 10)
    aborted: list[bool] = []
    feed = FrameFeed(lambda: aborted.append(True))
    feed.put(b"x" * 10)
    assert await feed.take() == (b"x" * 10, False)
    for _ in range(3):
        feed.put(b"x" * 6)
    assert aborted == [True]


async def test_who_left_gets_nothing_more() -> None:
    feed = FrameFeed(never)
    feed.put(b"a")
    feed.leave()
    feed.put(b"b")
    feed.close()
    assert await feed.take() == (b"", True)
