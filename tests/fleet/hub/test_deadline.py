"""A hub that sends a byte now and then: requests to it end."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fleet.errors import HubUnavailableError
from fleet.hub import client
from fleet.hub.client import HubClient
from inference.loading.sources import hub
from inference.loading.sources.deadline import DeadlineError, within
from inference.loading.sources.hub import HuggingFaceHub
from tests.cases import each_case

LONG_S = 120.0


@each_case("method", ["repository", "search"])
def test_an_answer_that_drips_is_given_up(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read was in time, so it never ended, and held a thread of the admin's."""
    ended = threading.Event()
    monkeypatch.setattr(client, "TOTAL_TIMEOUT_S", 0.05)
    monkeypatch.setattr(HubClient, f"_{method}", lambda *_: ended.wait(LONG_S))
    with pytest.raises(HubUnavailableError, match="did not answer within"):
        getattr(HubClient(), method)("org/tiny")
    ended.set()


def test_a_commit_that_drips_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """It held the neuron's thread that looks for files that were mended."""
    ended = threading.Event()
    monkeypatch.setattr(hub, "TOTAL_LIMIT_S", 0.05)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: ended.wait(LONG_S))
    assert HuggingFaceHub().commit("org/tiny", None) is None
    ended.set()


def test_what_is_asked_is_answered_or_raised() -> None:
    def broken() -> Any:
        raise ValueError("no")

    assert within(LONG_S, lambda: 5) == 5
    with pytest.raises(ValueError, match="no"):
        within(LONG_S, broken)


def test_a_hub_that_hangs_takes_a_bounded_number_of_threads() -> None:
    threads = threading.BoundedSemaphore(2)
    ended, num_asked = threading.Event(), 0

    def hang() -> None:
        nonlocal num_asked
        num_asked += 1
        ended.wait(LONG_S)

    for _ in range(4):
        with pytest.raises(DeadlineError):
            within(0.05, hang, threads=threads)
    ended.set()
    for thread in threading.enumerate():
        if thread.name == "deadline":  # it may have begun later than its question was given up
            thread.join(LONG_S)
    assert num_asked == 2
    assert within(LONG_S, lambda: 5, threads=threads) == 5
