"""Ids of requests sort by time, so that a database's index of them grows at its end."""

from __future__ import annotations

import time
import uuid

import pytest

from inference import request_ids
from inference.request_ids import REQUEST_ID, new_request_id
from tests.cases import each_case


@each_case("byte", [None, 0x00, 0xFF])
def test_an_id_is_a_uuid_of_version_7_with_the_time_in_it(
    byte: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if byte is not None:
        monkeypatch.setattr(request_ids.os, "urandom", lambda num_bytes: bytes([byte]) * num_bytes)
    before_ms = time.time_ns() // 1_000_000
    request_id = new_request_id()
    after_ms = time.time_ns() // 1_000_000
    made = uuid.UUID(hex=request_id)
    assert REQUEST_ID.fullmatch(request_id)
    assert (made.hex, made.version, made.variant) == (request_id, 7, uuid.RFC_4122)
    assert before_ms <= int(request_id[:12], 16) <= after_ms


def test_later_ids_are_greater_and_ids_of_one_moment_differ() -> None:
    made = [new_request_id(1_800_000_000 + number / 1000) for number in range(200)]
    assert made == sorted(made) and int(made[1][:12], 16) == 1_800_000_000_001
    assert len({new_request_id(1.0) for _ in range(10_000)}) == 10_000
