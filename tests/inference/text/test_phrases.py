"""Thinking between phrases of several tokens, and stop strings, however the tokens cut them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.text.choice_text import ChoiceText, ThoughtPart
from inference.text.phrases import (
    SPOKEN,
    PhraseMarkers,
    PhraseReader,
    StopStrings,
    find_phrases,
    opens_phrase,
)
from inference.text.reasoning import Run, TokenKind
from inference.text.tokenizer import Tokenizer
from inference.text.tool_calls.call_parser import TextPart
from tests.inference.text.marked_calls import pieces_of, split

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
OPENED, CLOSED = ("opens", OPENS), ("closes", CLOSES)
OTHERWISE = f"\n {SPOKEN.opens[1]} So. Here is my res! {SPOKEN.closes[1]} Yes."
OTHERWISE_OPENED, OTHERWISE_CLOSED = ("opens", SPOKEN.opens[1]), ("closes", SPOKEN.closes[1])
TAGGED = [("opens", "<think>"), "So.", ("closes", "</think>")]
ANSWERED = [*TAGGED, ("markup", "<response>"), "Yes.", ("markup", "</response>"), "\n"]


def thought(text: str) -> ThoughtPart:
    return ThoughtPart(text, f"{OPENS}\n", f"{CLOSES}\n")


def _read(phrases: PhraseMarkers, pieces: list[str], **more: bool) -> list[Run]:
    reader = PhraseReader(phrases, **more)
    runs = [run for piece in pieces for run in reader.feed(0, piece)[1]]
    joined: list[Run] = []
    for kind, text in [*runs, *reader.flush("")]:
        assert text
        if joined and joined[-1][0] is kind and kind in (TokenKind.THOUGHT, TokenKind.ANSWER):
            joined[-1] = (kind, joined[-1][1] + text)
        else:
            joined.append((kind, text))
    return joined


def test_between_phrases() -> None:
    """A text without a kind is a thought where the block is open, else of the answer."""
    for phrases, text, expected in (
        (SPOKEN, f"{OPENS}\nSo.\n\n{CLOSES}\nYes.", [OPENED, "\nSo.\n\n", CLOSED, "\nYes."]),
        (SPOKEN, OTHERWISE, [OTHERWISE_OPENED, " So. Here is my res! ", OTHERWISE_CLOSED, " Yes."]),
        (SPOKEN, "Here is a list.", ["Here is a list."]),
        (SPOKEN, "Here is my thought", ["Here is my thought"]),
        (SPOKEN, f"So: {OPENS}", [f"So: {OPENS}"]),
        (SPOKEN, f"{OPENS} for ever. Here is", [OPENED, " for ever. Here is"]),
        (SPOKEN, f"{OPENS}{CLOSES}{OPENS}", [OPENED, CLOSED, OPENS]),
        (SPOKEN, " \n", [" \n"]),
        (SPOKEN, "", []),
        (TAGS, "<think>So.</think>\n<response>Yes.</response>\n", ANSWERED),
        (TAGS, "<think>So.</think> Yes </response>", [*TAGGED, " Yes </response>"]),
        (TAGS, "<response>Yes", ["<response>Yes"]),
        (TAGS, "<think>So.</think><resp", [*TAGGED, "<resp"]),
    ):
        kind, runs = "answer", []
        for one in expected:
            if not isinstance(one, str):
                kind = {"opens": "thought", "closes": "answer"}.get(one[0], kind)
            runs.append((kind, one) if isinstance(one, str) else one)
        assert [(found.value, run) for found, run in _read(phrases, list(text))] == runs


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
def test_any_cut_is_the_same(
    words: list[str], cuts: list[int], phrases: PhraseMarkers, is_open: bool
) -> None:
    text = "".join(words)
    whole = _read(phrases, [text], is_open=is_open)
    for cut in (split(text, cuts), list(text)):
        assert _read(phrases, cut, is_open=is_open) == whole
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


def test_an_answer(byte_level_dir: Path) -> None:
    tokenizer, stops = Tokenizer.load(byte_level_dir), {"stop": ["END"]}
    so = f"{OPENS}\n\nSo é.\n\n{CLOSES}"
    num_tokens = len(tokenizer.encode(so.removeprefix(OPENS), add_special_tokens=False))
    for text, options, pieces in (
        (f"{so}\n\nStraße.", {}, [thought("So é.\n\n"), TextPart("Straße.")]),
        (f"{OPENS} my END {CLOSES} yes END no", stops, [thought("my END "), TextPart("yes ")]),
        ("Here is a list", {"stop": ["Here"]}, []),
        (f"\nSo. {CLOSES} yes", {"starts_thinking": True}, [thought("So. "), TextPart("yes")]),
    ):
        choice = ChoiceText(tokenizer, phrases=SPOKEN, **options)
        assert pieces_of(choice, text) == pieces
        assert [choice.stop] == options.get("stop", [None])
        assert options or 0 < choice.num_thought_tokens <= num_tokens


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
    assert _emitted(stops, split(text, cuts)) == _reference(stops, text)


def test_stop_strings_that_begin_alike_and_an_empty_one() -> None:
    stops = [f"\n\nUser {number}:" for number in range(64)]
    text = "One.\n\nUser 6, not a turn.\n\nUser 63: Two."
    for chunks in ([text], list(text)):
        assert _emitted(stops, chunks) == ("One.\n\nUser 6, not a turn.", "\n\nUser 63:")
    with pytest.raises(ValueError, match="empty"):
        StopStrings(["a", ""])
