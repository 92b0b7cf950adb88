"""Frames are taken in order, each once, whatever happens to their reader or to Redis."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

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


def test_all_frames_in_order_and_then_none(redis_db: redis.Redis) -> None:
    taken: list[InboxFrame] = []
    inbox = Inbox(redis_db, neuron="n1", handle=lambda frame, _: taken.append(frame))
    frames = [submit_of(f"r{number}") for number in range(2 * PARTS_A_READ + 1)]
    _put(redis_db, *frames)
    assert inbox.drain() == len(frames)
    assert taken == frames
    assert inbox.drain() == 0
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
    taken: list[InboxFrame] = []
    Inbox(redis_db, neuron="n1", handle=lambda frame, _: taken.append(frame)).drain()
    assert taken == frames


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
    taken: list[InboxFrame] = []
    impatient = redis.Redis.from_url(
        mortal.url, socket_timeout=0.1, socket_connect_timeout=0.1, retry=Retry(NoBackoff(), 0)
    )
    inbox = Inbox(impatient, neuron="n1", handle=lambda frame, _: taken.append(frame))
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
        assert taken == frames


def test_a_submit_that_comes_again_runs_once_also_after_its_end(redis_db: redis.Redis) -> None:
    taken: list[InboxFrame] = []
    inbox = Inbox(redis_db, neuron="n1", handle=lambda frame, _: taken.append(frame))
    _put(redis_db, submit_of("r1"), submit_of("r1"), Cancel(request_id="r1"))
    inbox.drain()
    _put(redis_db, submit_of("r1"), Cancel(request_id="r1"))
    inbox.drain()
    assert taken == [submit_of("r1"), Cancel(request_id="r1"), Cancel(request_id="r1")]


def test_a_submit_that_its_cancel_has_overtaken_does_not_run(redis_db: redis.Redis) -> None:
    taken: list[InboxFrame] = []
    inbox = Inbox(redis_db, neuron="n1", handle=lambda frame, _: taken.append(frame))
    _put(redis_db, Cancel(request_id="r1"), submit_of("r1"))
    inbox.drain()
    assert taken == [Cancel(request_id="r1")]


def test_requests_are_remembered_for_a_time_and_up_to_a_number(
    redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "MAX_SEEN", 3)
    taken: list[str] = []
    now_s = 0.0
    inbox = Inbox(
        redis_db,
        neuron="n1",
        handle=lambda frame, _: taken.append(frame.request_id),
        clock=lambda: now_s,
    )

    def taken_of(*request_ids: str) -> list[str]:
        taken.clear()
        _put(redis_db, *map(submit_of, request_ids))
        inbox.drain()
        return list(taken)

    assert taken_of("a") == ["a"]
    now_s = requests.SEEN_S - 1
    assert taken_of("a") == []
    now_s = requests.SEEN_S
    assert taken_of("a") == ["a"], "counted from when it was seen first"
    assert taken_of(*"bcd") == ["b", "c", "d"]
    assert taken_of("a") == ["a"], "the oldest went"
    assert taken_of("d") == []


def test_a_large_frame_is_taken_once_it_is_whole(redis_db: redis.Redis) -> None:
    taken: list[InboxFrame] = []
    inbox = Inbox(redis_db, neuron="n1", handle=lambda frame, _: taken.append(frame))
    request = GenerationRequest(model="m", input=TextInput(texts=["x" * 5_000_000]))
    large = structs.replace(submit_of("large"), request=request)
    *entries, last = inbox_entries(encode_inbox_frame(large))
    for entry in entries:
        redis_db.xadd(inbox_key("n1"), entry)  # type: ignore[arg-type]
    _put(redis_db, submit_of("small"))
    inbox.drain()
    assert taken == [submit_of("small")]
    for entry in (last, *entries):  # some of them come again
        redis_db.xadd(inbox_key("n1"), entry)  # type: ignore[arg-type]
    inbox.drain()
    assert taken == [submit_of("small"), large]
    assert redis_db.xlen(inbox_key("n1")) == 0
