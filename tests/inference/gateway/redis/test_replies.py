"""Replies cut anywhere are the same replies."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from inference.redis_link import ReplyBuffer

scalars = st.none() | st.integers(-(2**63), 2**63 - 1) | st.binary(max_size=40)
replies = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4), max_leaves=12)


def encoded(reply: Any) -> bytes:
    match reply:
        case None:
            return b"$-1\r\n"
        case int():
            return b":%d\r\n" % reply
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(reply), reply)
        case _:
            return b"*%d\r\n" % len(reply) + b"".join(map(encoded, reply))


@given(st.lists(replies, max_size=4), st.data())
def test_any_split_gives_the_same(values: list[Any], data: st.DataObject) -> None:
    whole = b"".join(map(encoded, values))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    buffer = ReplyBuffer()
    read: list[Any] = []
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        read += buffer.feed(whole[start:end])
    assert read == values


def test_statuses_errors_and_nothing() -> None:
    buffer = ReplyBuffer()
    ok, error, nothing = buffer.feed(b"+OK\r\n-ERR no such thing\r\n*-1\r\n")
    assert ok == b"OK" and nothing is None
    assert isinstance(error, redis.ResponseError) and str(error) == "ERR no such thing"


def test_what_is_no_reply_is_refused() -> None:
    with pytest.raises(redis.InvalidResponse):
        list(ReplyBuffer().feed(b"HTTP/1.1 400 Bad Request\r\n"))


def test_a_large_reply_in_small_pieces() -> None:
    entries = [[b"1-%d" % n, [b"b", bytes(65_536)]] for n in range(64)]
    whole = encoded([[b"stream", entries]])
    buffer = ReplyBuffer()
    read: list[Any] = []
    for start in range(0, len(whole), 4096):
        read += buffer.feed(whole[start : start + 4096])
    assert read == [[[b"stream", entries]]]
    assert buffer.num_bytes == 0


def test_the_bytes_of_an_unfinished_reply_are_counted() -> None:
    buffer = ReplyBuffer()
    assert list(buffer.feed(b"*2\r\n$3\r\none\r\n$400\r\nx")) == []
    assert buffer.num_bytes == 20
    rest = b"x" * 399 + b"\r\n:1\r\n:2"
    assert list(buffer.feed(rest)) == [[b"one", b"x" * 400], 1]
    assert 2 <= buffer.num_bytes <= len(rest)
    assert list(buffer.feed(b"\r\n")) == [2]
    assert buffer.num_bytes == 0
