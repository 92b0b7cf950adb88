"""What clients' texts gave is kept, by digest, up to so many bytes."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from inference.recent_results import ENTRY_BYTES, RecentResults


def made(max_entries: int) -> RecentResults[str | None]:
    return RecentResults(max_entries * (ENTRY_BYTES + 10), lambda _, result: len(result or ""))


def fail(text: str) -> str:
    raise ValueError(text)


def test_a_result_is_computed_once_and_the_least_recently_used_goes_first() -> None:
    kept = made(2)
    for text in ("a", "b", "a", "c"):
        assert kept.get(text, str.upper) == text.upper()
    assert kept.get("a", fail) == "A"
    with pytest.raises(ValueError):
        kept.get("b", fail)
    assert kept.get("none", lambda _: None) is None
    assert kept.get("none", fail) is None


def test_many_and_large_results_take_no_more_than_they_may() -> None:
    kept = made(10)
    for number in range(100):
        kept.get(str(number), lambda text: number % 7 * text)  # noqa: B023
        assert kept.num_bytes <= 10 * (ENTRY_BYTES + 10)
    assert len(kept) >= 9
    kept.get("fits", lambda _: (9 * ENTRY_BYTES + 100) * "x")
    assert (len(kept), kept.num_bytes) == (1, 10 * (ENTRY_BYTES + 10))
    kept.get("huge", lambda _: 10_000 * "x")
    assert len(kept) == 1, "one that does not fit drives no others out"


def test_texts_are_not_kept() -> None:
    text = "a client's words \ud800".upper()
    references = sys.getrefcount(text)
    kept = made(10)
    kept.get(text, lambda _: "known")
    assert (sys.getrefcount(text), len(kept)) == (references, 1)


def test_threads_that_compute_the_same_count_it_once() -> None:
    kept, barrier = made(10), threading.Barrier(4)

    def slow(text: str) -> str:
        barrier.wait()
        return text.upper()

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(kept.get, "aaaa", [slow] * 4)) == ["A"] * 4
    assert kept.num_bytes == ENTRY_BYTES + 1
