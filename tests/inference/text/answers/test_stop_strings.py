"""A stop string is found across any chunk borders, and nothing of it gets out."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.text.answers.phrases import StopStrings

ALPHABET = "ab\n🙂"
TEXTS = st.text(ALPHABET, max_size=40)
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=5), max_size=9)


def _run(stops: list[str], chunks: list[str]) -> tuple[str, str | None]:
    matcher = StopStrings(stops)
    emitted = ""
    for chunk in chunks:
        found = matcher.feed(chunk)
        emitted += found.text
        if found.stop is not None:
            return emitted, found.stop
    return emitted + matcher.flush(), None


def _reference(stops: list[str], text: str) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


@given(stops=STOPS, text=TEXTS, cuts=st.lists(st.integers(0, 40)))
def test_any_split_gives_the_naive_answer(stops: list[str], text: str, cuts: list[int]) -> None:
    borders = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    chunks = [text[start:end] for start, end in itertools.pairwise(borders)]
    assert _run(stops, chunks) == _reference(stops, text)


@given(stops=STOPS, text=TEXTS)
def test_only_what_could_become_a_stop_is_held(stops: list[str], text: str) -> None:
    matcher = StopStrings(stops)
    emitted = ""
    for position, character in enumerate(text):
        found = matcher.feed(character)
        if found.stop is not None:
            return
        emitted += found.text
        held = text[len(emitted) : position + 1]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_sixty_four_stop_strings_that_begin_alike() -> None:
    stops = [f"\n\nUser {number}:" for number in range(64)]
    text = "One.\n\nUser 6, not a turn.\n\nUser 63: Two."
    assert _run(stops, list(text)) == ("One.\n\nUser 6, not a turn.", "\n\nUser 63:")
    assert _run(stops, [text]) == _run(stops, list(text))


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStrings(["a", ""])
