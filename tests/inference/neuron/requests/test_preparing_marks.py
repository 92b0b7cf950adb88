"""Marks of requests in preparation: present when the process dies, without a round trip before the
work."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import redis

from inference.neuron.process.redis_client import connect
from inference.neuron.requests.starter import EARLIER_KEPT_S, PreparingMarks
from inference.protocol.held import MARKS_EXPIRY_S
from inference.protocol.keys import preparing_key
from tests.inference.neuron.conftest import wait_until
from tests.servers.private_redis import MortalRedis

DIES = """
import os, signal, sys
from inference.neuron.requests.starter import PreparingMarks
from inference.neuron.process.redis_client import connect
from tests.inference.neuron.conftest import wait_until
marks = PreparingMarks(connect(sys.argv[1]), neuron="n1", epoch="e1")
marks.keep(0.0)
marks.begin("done")
marks.end("done")
marks.begin("poison")
os.kill(os.getpid(), signal.SIGSEGV)
"""


def marks_in(client: redis.Redis) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = client.hgetall(preparing_key("n1"))  # type: ignore[assignment]
    return found


def test_a_mark_outlives_the_process_that_dies_right_after_it(
    redis_url: str, redis_db: redis.Redis
) -> None:
    for _ in range(5):
        redis_db.delete(preparing_key("n1"))
        ended = subprocess.run([sys.executable, "-c", DIES, redis_url], check=False)
        assert ended.returncode == -signal.SIGSEGV
        wait_until(lambda: marks_in(redis_db) == {b"poison": b"e1"})
    assert 0 < redis_db.ttl(preparing_key("n1")) <= MARKS_EXPIRY_S


def test_the_next_instance_knows_them_and_forgets_them_later(
    redis_url: str, redis_db: redis.Redis
) -> None:
    redis_db.hset(preparing_key("n1"), mapping={"poison": "e1"})
    marks = PreparingMarks(connect(redis_url), neuron="n1", epoch="e2")
    marks.read_earlier()
    marks.keep(0.0)
    assert marks.earlier == {"poison": "e1"}
    assert marks_in(redis_db) == {b"poison": b"e1"}
    marks.keep(EARLIER_KEPT_S + 1)
    assert marks.earlier == {}
    assert marks_in(redis_db) == {}
    marks.close()


def test_nothing_waits_for_a_redis_that_stands_still(mortal: MortalRedis) -> None:
    with redis.Redis.from_url(mortal.url) as client:
        marks = PreparingMarks(connect(mortal.url), neuron="n1", epoch="e1")
        marks.keep(0.0)
        mortal.suspend()
        started_s = time.monotonic()
        for number in range(20):
            marks.begin(f"r{number}")
            marks.end(f"r{number}")
        marks.begin("last")
        took_s = time.monotonic() - started_s
        mortal.resume()
        # Waiting for replies, each would have taken the two seconds of this client's patience.
        assert took_s < 40
        wait_until(lambda: marks_in(client) == {b"last": b"e1"})
        marks.close()


def test_marks_continue_after_a_lost_connection(redis_url: str, redis_db: redis.Redis) -> None:
    marks = PreparingMarks(connect(redis_url), neuron="n1", epoch="e1")
    marks.begin("before anything is connected")
    for _ in range(5):
        marks.keep(0.0)
        for number in range(500):
            marks.begin(f"r{number}")
            marks.end(f"r{number}")
    marks.begin("last of many")
    wait_until(lambda: marks_in(redis_db) == {b"last of many": b"e1"})
    ids = [one["id"] for one in redis_db.client_list() if one["cmd"] != "client|list"]
    for one in ids:
        redis_db.client_kill_filter(_id=one)

    def is_marked() -> bool:
        marks.keep(0.0)
        marks.begin("after")
        return b"after" in marks_in(redis_db)

    wait_until(is_marked)
    marks.close()
