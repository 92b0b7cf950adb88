"""What clients' texts gave is kept, by digest, up to so many bytes."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from inference.recent_results import ENTRY_BYTES, RecentResults


def upper(text: str) -> str:
    return text.upper()


def made(max_entries: int) -> RecentResults[str]:
    return RecentResults(max_entries * (ENTRY_BYTES + 10), lambda _text, result: len(result))


def fail(text: str) -> str:
    raise ValueError(text)


def test_a_result_is_computed_once_and_none_is_one() -> None:
    kept = made(2)
    assert kept.get("a", upper) == "A"
    assert kept.get("a", fail) == "A"
    empty: RecentResults[str | None] = RecentResults(10_000, lambda *_: 0)
    assert empty.get("a", lambda _: None) is None
    assert empty.get("a", upper) is None


def test_the_least_recently_used_goes_first() -> None:
    kept = made(2)
    for text in ("a", "b", "a", "c"):
        kept.get(text, upper)
    assert kept.get("a", fail) == "A"
    with pytest.raises(ValueError):
        kept.get("b", fail)


def test_many_and_large_results_take_no_more_than_they_may() -> None:
    kept = made(10)
    for number in range(1000):
        kept.get(str(number), lambda text: number % 7 * text)  # noqa: B023
        assert kept.num_bytes <= 10 * (ENTRY_BYTES + 10)
    assert len(kept) >= 9
    kept.get("huge", lambda _: 10_000 * "x")
    assert len(kept) >= 9, "one that does not fit drives no others out"


def test_texts_are_not_kept() -> None:
    kept = made(10)
    text = "a client's words \ud800".upper()
    references = sys.getrefcount(text)
    kept.get(text, lambda _: "known")
    assert sys.getrefcount(text) == references
    assert len(kept) == 1


def test_threads_that_compute_the_same_count_it_once() -> None:
    kept = made(10)
    barrier = threading.Barrier(4)

    def slow(text: str) -> str:
        barrier.wait()
        return upper(text)

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(kept.get, "aaaa", [slow] * 4)) == ["A"] * 4
    assert kept.num_bytes == ENTRY_BYTES + 1
