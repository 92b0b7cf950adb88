"""Lines that come each second, and which of them are logged."""

from __future__ import annotations

import logging

import pytest

from inference.logs.throttled import MAX_KEYS, ThrottledLog

logger = logging.getLogger("tests.throttled")


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_few_lines_of_each_key_and_interval(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = ThrottledLog(logger, logging.WARNING, interval_s=60, max_messages=2, clock=clock)
    for number in range(10):
        log.log("a", f"a{number % 3}")
    log.log("b", "b")
    assert messages(caplog) == ["a0", "a1", "b"]
    clock.now_s = 60
    log.log("a", "a0")
    log.log("b", "b")
    assert messages(caplog)[3:] == ["a0 (and 8 more like it)", "b"]


def test_a_key_that_is_forgotten_is_new(caplog: pytest.LogCaptureFixture) -> None:
    log = ThrottledLog(logger, logging.WARNING)
    for _ in range(2):
        log.log("a", "broken")
        log.forget("a")
    assert messages(caplog) == ["broken", "broken"]


def test_keys_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    log = ThrottledLog(logger, logging.WARNING)
    for number in range(MAX_KEYS + 1):
        log.log(str(number), "x")
    log.log("1", "x")
    log.log("0", "x")
    assert len(caplog.records) == MAX_KEYS + 2
