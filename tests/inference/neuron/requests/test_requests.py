"""Frames are taken in order, each once, whatever happens to their reader or to Redis."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from msgspec import structs
from redis.backoff import NoBackoff
from redis.retry import Retry

from inference.neuron.requests import requests
from inference.neuron.requests.requests import Inbox
from inference.protocol.generation import (
    Cancel,
    GenerationRequest,
    InboxFrame,
    TextInput,
    encode_inbox_frame,
)
from inference.protocol.inbox_parts import PARTS_A_READ, inbox_entries
from inference.protocol.keys import inbox_key
from tests.inference.neuron.requests.running_requests import submit_of
from tests.servers.private_redis import MortalRedis


def _put(client: redis.Redis, *frames: InboxFrame) -> None:
    for frame in frames:
        for entry in inbox_entries(encode_inbox_frame(frame)):
            client.xadd(inbox_key("n1"), entry)  # type: ignore[arg-type]


class Read:
    """An inbox and what was taken from it."""

    def __init__(self, client: redis.Redis, **options: Any) -> None:
        self.client = client
        self.taken: list[InboxFrame] = []
        self.inbox = Inbox(
            client, neuron="n1", handle=lambda frame, _: self.taken.append(frame), **options
        )

    def take(self, *frames: InboxFrame) -> list[InboxFrame]:
        self.taken.clear()
        _put(self.client, *frames)
        self.inbox.drain()
        return list(self.taken)


def test_all_frames_in_order_and_then_none(redis_db: redis.Redis) -> None:
    read = Read(redis_db)
    frames = [submit_of(f"r{number}") for number in range(2 * PARTS_A_READ + 1)]
    assert read.take(*frames) == frames
    assert read.inbox.drain() == 0
    assert redis_db.xlen(inbox_key("n1")) == 0


def test_frames_of_a_reader_that_died_are_read_by_the_next(redis_db: redis.Redis) -> None:
    class DiedError(Exception):
        pass

    def die(_frame: InboxFrame, _num_bytes: int) -> None:
        raise DiedError

    frames = [submit_of("r1"), Cancel(request_id="r1"), submit_of("r2")]
    _put(redis_db, *frames)
    with pytest.raises(DiedError):
        Inbox(redis_db, neuron="n1", handle=die).drain()
    assert Read(redis_db).take() == frames


def _drain_until(inbox: Inbox, is_done: Callable[[], bool]) -> None:
    """Redis may take its time, of which the inbox allows little."""
    give_up_s = time.monotonic() + 60
    while time.monotonic() < give_up_s:
        with contextlib.suppress(redis.TimeoutError):
            inbox.drain()
            if is_done():
                return
    pytest.fail("it was not drained")


def test_a_reader_that_got_no_answer_takes_each_frame_once(mortal: MortalRedis) -> None:
    impatient = redis.Redis.from_url(
        mortal.url, socket_timeout=0.1, socket_connect_timeout=0.1, retry=Retry(NoBackoff(), 0)
    )
    read = Read(impatient)
    inbox = read.inbox
    frames = [submit_of(f"r{number}") for number in range(5)]
    with redis.Redis.from_url(mortal.url) as client:
        _drain_until(inbox, lambda: True)
        _put(client, *frames)
        mortal.suspend()
        for _ in range(4):
            with pytest.raises(redis.TimeoutError):
                inbox.drain()
        mortal.resume()
        _drain_until(inbox, lambda: client.xlen(inbox_key("n1")) == 0)
        assert read.taken == frames


def test_a_submit_runs_once_and_not_after_its_cancel(redis_db: redis.Redis) -> None:
    read = Read(redis_db)
    submit, cancel = submit_of("r1"), Cancel(request_id="r1")
    assert read.take(submit, submit, cancel) == [submit, cancel]
    assert read.take(submit, cancel) == [cancel]
    overtaking = Cancel(request_id="r2")
    assert read.take(overtaking, submit_of("r2")) == [overtaking]


def test_requests_are_remembered_for_a_time_and_up_to_a_number(
    redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "MAX_SEEN", 3)
    now_s = 0.0
    read = Read(redis_db, clock=lambda: now_s)

    def taken_of(*request_ids: str) -> list[str]:
        return [frame.request_id for frame in read.take(*map(submit_of, request_ids))]

    assert taken_of("a") == ["a"]
    now_s = requests.SEEN_S - 1
    assert taken_of("a") == []
    now_s = requests.SEEN_S
    assert taken_of("a") == ["a"], "counted from when it was seen first"
    assert taken_of(*"bcd") == ["b", "c", "d"]
    assert taken_of("a") == ["a"], "the oldest went"
    assert taken_of("d") == []


def test_a_large_frame_is_taken_once_it_is_whole(redis_db: redis.Redis) -> None:
    read = Read(redis_db)
    request = GenerationRequest(model="m", input=TextInput(texts=["x" * 5_000_000]))
    large = structs.replace(submit_of("large"), request=request)
    *entries, last = inbox_entries(encode_inbox_frame(large))
    for entry in entries:
        redis_db.xadd(inbox_key("n1"), entry)  # type: ignore[arg-type]
    assert read.take(submit_of("small")) == [submit_of("small")]
    for entry in (last, *entries):  # some of them come again
        redis_db.xadd(inbox_key("n1"), entry)  # type: ignore[arg-type]
    assert read.take() == [large]
    assert redis_db.xlen(inbox_key("n1")) == 0
