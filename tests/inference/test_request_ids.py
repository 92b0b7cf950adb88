"""Ids of requests sort by time, so that a database's index of them grows at its end."""

from __future__ import annotations

import time
import uuid

import pytest

from inference import request_ids
from inference.request_ids import new_request_id
from tests.cases import each_case


def test_an_id_is_a_uuid_of_version_7_with_the_time_in_it() -> None:
    before_ms = time.time_ns() // 1_000_000
    request_id = new_request_id()
    after_ms = time.time_ns() // 1_000_000
    made = uuid.UUID(hex=request_id)
    assert (made.hex, made.version, made.variant) == (request_id, 7, uuid.RFC_4122)
    assert before_ms <= int(request_id[:12], 16) <= after_ms


def test_later_ids_are_greater_and_ids_of_one_moment_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []
    for unix_ms in range(1_800_000_000_000, 1_800_000_000_200):
        monkeypatch.setattr(request_ids.time, "time_ns", lambda unix_ms=unix_ms: unix_ms * 10**6)
        made.append(new_request_id())
    assert made == sorted(made)
    assert len({new_request_id() for _ in range(10_000)}) == 10_000


@each_case("byte", [0x00, 0xFF])
def test_random_bits_leave_version_and_variant_alone(
    byte: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_ids.os, "urandom", lambda num_bytes: bytes([byte]) * num_bytes)
    made = uuid.UUID(hex=new_request_id())
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
