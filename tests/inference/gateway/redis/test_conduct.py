"""Faults are counted, logged seldom, and too many shut a neuron out once."""

from __future__ import annotations

import logging

import pytest

from inference.gateway.redis.event_reader import LOG_INTERVAL_S, MAX_FAULTS, WINDOW_S, NeuronConduct


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_too_many_faults_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    cut_off: list[tuple[str, str]] = []
    clock = Clock()
    conduct = NeuronConduct(lambda *one: cut_off.append(one), clock=clock)
    with caplog.at_level(logging.ERROR):
        for _ in range(20_000):
            conduct.fault("evil", "junk")
        for _ in range(MAX_FAULTS):
            conduct.fault("odd", "junk")
    assert cut_off == [("evil", f"junk, the last of {MAX_FAULTS + 1} faults in a minute")]
    assert len(caplog.records) == 2
    clock.now_s = LOG_INTERVAL_S
    conduct.fault("odd", "junk")
    assert f"and {MAX_FAULTS - 1} more" in caplog.text
    assert [name for name, _ in cut_off] == ["evil", "odd"]


def test_faults_of_long_ago_do_not_count() -> None:
    cut_off: list[tuple[str, str]] = []
    clock = Clock()
    conduct = NeuronConduct(lambda *one: cut_off.append(one), clock=clock)
    for _ in range(10):
        for _ in range(MAX_FAULTS):
            conduct.fault("beast", "junk")
        clock.now_s += WINDOW_S + 1
    assert cut_off == []


def test_a_grave_fault_is_enough() -> None:
    cut_off: list[tuple[str, str]] = []
    conduct = NeuronConduct(lambda *one: cut_off.append(one))
    conduct.fault("evil", "an entry is too large", is_grave=True)
    assert cut_off == [("evil", "an entry is too large")]
