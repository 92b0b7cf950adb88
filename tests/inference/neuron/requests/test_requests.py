"""Frames are taken in order, each once, whatever happens to their reader or to Redis; those that
are being prepared leave a mark for the case that they end the process."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from inference.neuron.name_lease import connect
from inference.neuron.requests import requests
from inference.neuron.requests.requests import Inbox
from inference.neuron.requests.starter import EARLIER_KEPT_S, PreparingMarks
from inference.protocol.delivery import MARKS_EXPIRY_S, PARTS_A_READ, inbox_entries
from inference.protocol.generation import Cancel, InboxFrame, TextInput, encode_inbox_frame
from inference.protocol.keys import inbox_key, preparing_key
from tests.inference.neuron.conftest import wait_until
from tests.inference.neuron.model_texts import request_for_model, submit_of
from tests.servers.private_redis import MortalRedis


def _add(client: redis.Redis, *entries: Any) -> None:
    for entry in entries:
        client.xadd(inbox_key("n1"), entry)


def _put(client: redis.Redis, *frames: InboxFrame) -> None:
    for frame in frames:
        _add(client, *inbox_entries(encode_inbox_frame(frame)))


class Read:
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


def test_all_frames_in_order_also_those_of_a_reader_that_died(redis_db: redis.Redis) -> None:
    read = Read(redis_db)
    frames: list[InboxFrame] = [submit_of(f"r{n}") for n in range(2 * PARTS_A_READ + 1)]
    assert read.take(*frames) == frames
    assert read.inbox.drain() == 0
    assert redis_db.xlen(inbox_key("n1")) == 0

    def die(_frame: InboxFrame, _num_bytes: int) -> None:
        raise ZeroDivisionError

    frames = [submit_of("r1"), Cancel(request_id="r1"), submit_of("r2")]
    _put(redis_db, *frames)
    with pytest.raises(ZeroDivisionError):
        Inbox(redis_db, neuron="n1", handle=die).drain()
    assert Read(redis_db).take() == frames


def _drain_until(inbox: Inbox, is_done: Callable[[], bool]) -> None:
    """Redis may take its time, of which the inbox allows little."""

    def drained() -> bool:
        with contextlib.suppress(redis.TimeoutError):
            inbox.drain()
            return is_done()
        return False

    wait_until(drained)


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


def test_a_submit_runs_once_and_not_after_its_cancel_and_is_remembered_for_a_time(
    redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Read(redis_db)
    submit, cancel = submit_of("r1"), Cancel(request_id="r1")
    assert read.take(submit, submit, cancel) == [submit, cancel]
    assert read.take(submit, cancel) == [cancel]
    overtaking = Cancel(request_id="r2")
    assert read.take(overtaking, submit_of("r2")) == [overtaking]

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
    large = submit_of("large", request_for_model(TextInput(texts=["x" * 5_000_000])))
    *entries, last = inbox_entries(encode_inbox_frame(large))
    _add(redis_db, *entries)
    assert read.take(submit_of("small")) == [submit_of("small")]
    _add(redis_db, last, *entries)  # some of them come again
    assert read.take() == [large]
    assert redis_db.xlen(inbox_key("n1")) == 0


DIES = """
import os, signal, sys
from inference.neuron.requests.starter import PreparingMarks
from inference.neuron.name_lease import connect
marks = PreparingMarks(connect(sys.argv[1]), neuron="n1", epoch="e1")
marks.keep(0.0)
marks.begin("done")
marks.end("done")
marks.begin("poison")
os.kill(os.getpid(), signal.SIGSEGV)
"""


def marks_in(client: redis.Redis) -> dict[bytes, bytes]:
    return client.hgetall(preparing_key("n1"))


def test_a_mark_outlives_its_process_for_a_time(redis_url: str, redis_db: redis.Redis) -> None:
    for _ in range(3):
        redis_db.delete(preparing_key("n1"))
        ended = subprocess.run([sys.executable, "-c", DIES, redis_url], check=False)
        assert ended.returncode == -signal.SIGSEGV
        wait_until(lambda: marks_in(redis_db) == {b"poison": b"e1"})
    assert 0 < redis_db.ttl(preparing_key("n1")) <= MARKS_EXPIRY_S
    marks = PreparingMarks(connect(redis_url), neuron="n1", epoch="e2")
    marks.read_earlier()
    marks.keep(0.0)
    assert marks.earlier == {"poison": "e1"}
    assert marks_in(redis_db) == {b"poison": b"e1"}
    marks.keep(EARLIER_KEPT_S + 1)
    assert marks.earlier == {}
    assert marks_in(redis_db) == {}
    marks.close()


def test_marks_wait_for_no_redis_and_continue_after_a_lost_connection(mortal: MortalRedis) -> None:
    with redis.Redis.from_url(mortal.url) as client:
        marks = PreparingMarks(connect(mortal.url), neuron="n1", epoch="e1")

        def come_and_go(number: int) -> None:
            for one in range(number):
                marks.begin(f"r{one}")
                marks.end(f"r{one}")

        marks.begin("before anything is connected")
        marks.keep(0.0)
        mortal.suspend()
        started_s = time.monotonic()
        come_and_go(20)
        marks.begin("last")
        took_s = time.monotonic() - started_s
        mortal.resume()
        # Waiting for replies, each would have taken the two seconds of this client's patience.
        assert took_s < 40
        wait_until(lambda: marks_in(client) == {b"last": b"e1"})
        for _ in range(5):
            marks.keep(0.0)
            come_and_go(500)
        marks.end("last")
        wait_until(lambda: marks_in(client) == {})
        for one in client.client_list():
            if one["cmd"] != "client|list":
                client.client_kill_filter(_id=one["id"])

        def is_marked() -> bool:
            marks.keep(0.0)
            marks.begin("after")
            return b"after" in marks_in(client)

        wait_until(is_marked)
        marks.close()
