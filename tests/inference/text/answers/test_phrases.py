"""Thinking between phrases of several tokens, and stop strings, however the tokens cut them."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.text.answers.choice_text import ChoiceText, Piece, ThoughtPart, merged
from inference.text.answers.parts import Run, TextPart, TokenKind
from inference.text.answers.phrases import (
    SPOKEN,
    PhraseMarkers,
    PhraseReader,
    StopStrings,
    find_phrases,
    opens_phrase,
)
from inference.text.tokens.tokenizer import Tokenizer
from tests.cases import each_case

OPENS, CLOSES = SPOKEN.opens[0], SPOKEN.closes[0]
GRANITE_32 = (
    "{%- if thinking %}Write your thoughts after 'Here is my thought process:' and write your "
    "response after 'Here is my response:' for each user query.{%- endif %}"
)
GRANITE_33 = (
    "{%- if thinking %}Write your thoughts between <think></think> and write your response between "
    "<response></response> for each user query.{%- endif %}"
)
TAGS = find_phrases(GRANITE_33)
assert TAGS is not None


@pytest.fixture(scope="module")
def tokenizer(byte_level_dir: Path) -> Tokenizer:
    return Tokenizer.load(byte_level_dir)


def _read(phrases: PhraseMarkers, pieces: list[str], **more: bool) -> list[Run]:
    """Neighbours of a kind joined; checks that every token becomes something."""
    reader = PhraseReader(phrases, **more)
    kinds: list[TokenKind] = []
    runs: list[Run] = []
    for piece in pieces:
        settled, found = reader.feed(0, piece)
        kinds += settled
        runs += found
    settled, found = reader.flush("")
    assert len([*kinds, *settled]) == len(pieces)
    joined: list[Run] = []
    for kind, text in [*runs, *found]:
        assert text
        if joined and joined[-1][0] is kind and kind in (TokenKind.THOUGHT, TokenKind.ANSWER):
            joined[-1] = (kind, joined[-1][1] + text)
        else:
            joined.append((kind, text))
    return joined


def _kinds(phrases: PhraseMarkers, text: str) -> list[tuple[str, str]]:
    return [(kind.value, run) for kind, run in _read(phrases, list(text))]


@each_case(
    ("text", "expected"),
    [
        (
            f"{OPENS}\nSo.\n\n{CLOSES}\nYes.",
            [("opens", OPENS), ("thought", "\nSo.\n\n"), ("closes", CLOSES), ("answer", "\nYes.")],
        ),
        (
            f"\n {SPOKEN.opens[1]} So. Here is my res! {SPOKEN.closes[1]} Yes.",
            [
                ("opens", SPOKEN.opens[1]),
                ("thought", " So. Here is my res! "),
                ("closes", SPOKEN.closes[1]),
                ("answer", " Yes."),
            ],
        ),
        ("Here is a list.", [("answer", "Here is a list.")]),
        ("Here is my thought", [("answer", "Here is my thought")]),
        (f"So: {OPENS}", [("answer", f"So: {OPENS}")]),
        (f"{OPENS} for ever. Here is", [("opens", OPENS), ("thought", " for ever. Here is")]),
        (f"{OPENS}{CLOSES}{OPENS}", [("opens", OPENS), ("closes", CLOSES), ("answer", OPENS)]),
        (" \n", [("answer", " \n")]),
        ("", []),
    ],
)
def test_the_text_between_phrases(text: str, expected: list[tuple[str, str]]) -> None:
    assert _kinds(SPOKEN, text) == expected


@each_case(
    ("text", "expected"),
    [
        (
            "<think>So.</think>\n<response>Yes.</response>\n",
            [
                ("opens", "<think>"),
                ("thought", "So."),
                ("closes", "</think>"),
                ("markup", "<response>"),
                ("answer", "Yes."),
                ("markup", "</response>"),
                ("answer", "\n"),
            ],
        ),
        (
            "<think>So.</think> Yes </response>",
            [
                ("opens", "<think>"),
                ("thought", "So."),
                ("closes", "</think>"),
                ("answer", " Yes </response>"),
            ],
        ),
        ("<response>Yes", [("answer", "<response>Yes")]),
        (
            "<think>So.</think><resp",
            [("opens", "<think>"), ("thought", "So."), ("closes", "</think>"), ("answer", "<resp")],
        ),
    ],
)
def test_tags_that_are_no_tokens(text: str, expected: list[tuple[str, str]]) -> None:
    assert _kinds(TAGS, text) == expected


WORDS = (
    *("Here", " is", "'s", " my", " thought", " process", ":", " response", ":", "\n", " "),
    *("<think>", "</think>", "<resp", "onse>", "</", "response>", "a", "é", ""),
    *(OPENS, CLOSES),
)


@given(
    words=st.lists(st.sampled_from(WORDS), max_size=14),
    cuts=st.lists(st.integers(0, 200), max_size=8),
    phrases=st.sampled_from([SPOKEN, TAGS]),
    is_open=st.booleans(),
)
def test_however_it_is_cut_it_gives_the_same(
    words: list[str], cuts: list[int], phrases: PhraseMarkers, is_open: bool
) -> None:
    text = "".join(words)
    borders = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    pieces = [text[start:end] for start, end in itertools.pairwise(borders)]
    whole = _read(phrases, [text], is_open=is_open)
    assert (
        _read(phrases, pieces, is_open=is_open)
        == whole
        == _read(phrases, list(text), is_open=is_open)
    )
    rejoined = "".join(run for _, run in whole)
    assert rejoined == text or rejoined == text.lstrip() or phrases is TAGS


def test_templates_declare_them() -> None:
    assert find_phrases(GRANITE_32) is SPOKEN
    assert (TAGS.opens, TAGS.closes) == (("<think>",), ("</think>",))
    assert (TAGS.answer_opens, TAGS.answer_closes) == ("<response>", "</response>")
    plain = find_phrases("{{ '<reasoning>' }}{{ '</reasoning>' }}")
    assert plain == PhraseMarkers(("<reasoning>",), ("</reasoning>",))
    assert find_phrases("{{ content.split('</think>') }}") is None
    assert find_phrases(None) is None
    assert opens_phrase("Hi<think>\n", TAGS) and not opens_phrase("<think></think>", TAGS)


def _run(tokenizer: Tokenizer, text: str, **more: object) -> tuple[ChoiceText, list[Piece]]:
    choice = ChoiceText(tokenizer, phrases=SPOKEN, **more)  # type: ignore[arg-type]
    pieces: list[Piece] = []
    for token_id in tokenizer.encode(text, add_special_tokens=False):
        pieces += choice.feed(token_id)[1]
        if choice.stop is not None:
            return choice, merged(pieces)
    return choice, merged([*pieces, *choice.flush()[1]])


def test_an_answer_is_taken_apart(tokenizer: Tokenizer) -> None:
    choice, pieces = _run(tokenizer, f"{OPENS}\n\nSo é.\n\n{CLOSES}\n\nStraße.")
    assert pieces == [
        ThoughtPart("So é.\n\n", f"{OPENS}\n", f"{CLOSES}\n"),
        TextPart("Straße."),
    ]
    thought = tokenizer.encode("\n\nSo é.\n\n", add_special_tokens=False)
    assert 0 < choice.num_thought_tokens <= len(thought)


def test_stop_strings_are_looked_for_behind_the_thought(tokenizer: Tokenizer) -> None:
    choice, pieces = _run(tokenizer, f"{OPENS} my END {CLOSES} yes END no", stop=["END"])
    assert choice.stop == "END"
    assert pieces[-1] == TextPart("yes ")


def test_a_stop_string_that_begins_like_a_phrase(tokenizer: Tokenizer) -> None:
    choice, pieces = _run(tokenizer, "Here is a list", stop=["Here"])
    assert choice.stop == "Here" and pieces == []


def test_a_block_that_the_prompt_opened(tokenizer: Tokenizer) -> None:
    _, pieces = _run(tokenizer, f"\nSo. {CLOSES} yes", starts_thinking=True)
    assert pieces == [ThoughtPart("So. ", f"{OPENS}\n", f"{CLOSES}\n"), TextPart("yes")]


ALPHABET = "ab\n🙂"
TEXTS = st.text(ALPHABET, max_size=40)
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=5), max_size=9)


def _emitted(stops: list[str], chunks: list[str]) -> tuple[str, str | None]:
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
    assert _emitted(stops, chunks) == _reference(stops, text)


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
    assert _emitted(stops, list(text)) == ("One.\n\nUser 6, not a turn.", "\n\nUser 63:")
    assert _emitted(stops, [text]) == _emitted(stops, list(text))


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStrings(["a", ""])
