"""Captured bodies take a bounded part of memory."""

from __future__ import annotations

from inference.gateway.request.outcome import MAX_ANSWER_BYTES, MAX_REQUEST_BYTES, Capture


def test_only_the_beginning_is_kept() -> None:
    capture = Capture()
    capture.ask(b"q" * (MAX_REQUEST_BYTES + 3))
    for part in (b"a" * (MAX_ANSWER_BYTES - 1), b"bcd", b"e"):
        capture.send(part)
    assert capture.request == b"q" * MAX_REQUEST_BYTES
    assert capture.num_request_bytes == MAX_REQUEST_BYTES + 3
    assert capture.answer == b"a" * (MAX_ANSWER_BYTES - 1) + b"b"
    assert capture.num_answer_bytes == MAX_ANSWER_BYTES + 3
    assert capture.num_bytes == MAX_REQUEST_BYTES + MAX_ANSWER_BYTES


def test_what_finds_no_room_keeps_its_sizes() -> None:
    capture = Capture()
    capture.ask(b"question")
    capture.send(b"answer")
    capture.drop()
    assert capture.num_bytes == 0
    assert (capture.num_request_bytes, capture.num_answer_bytes) == (8, 6)
