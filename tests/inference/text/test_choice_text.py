"""However the tokens come, an answer is taken apart into the same thought, text and calls; markers
that are one token each, and blocks that a prompt opens."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from inference.text import reasoning
from inference.text.choice_text import ChoiceText, Piece, ThoughtPart
from inference.text.reasoning import TokenKind
from inference.text.tokenizer import Tokenizer
from inference.text.tool_calls.call_parser import CallArguments, CallStarted, TextPart
from tests.cases import each_case
from tests.inference.text.marked_calls import MarkedCalls, pieces_of


def _choice(tokenizer: Tokenizer, *, calls: bool = False, **kwargs: object) -> ChoiceText:
    form = MarkedCalls()
    return ChoiceText(
        tokenizer,
        markers=reasoning.find_markers(tokenizer, None),
        tool_calls=form.parser([]) if calls else None,
        shown_token_ids=form.shown_token_ids(tokenizer) if calls else frozenset(),
        **kwargs,  # type: ignore[arg-type]
    )


THOUGHT = ThoughtPart("so", "<think>", "</think>")
CALLS = '<think><call>no {}</call></think>\nfirst<call>f {"a": 1}</call><call>g {}</call>'


@each_case(
    ("text", "given", "pieces"),
    [
        ("Straße", {}, [TextPart("Straße")]),
        ("\n\nStraße", {}, [TextPart("\n\nStraße")]),
        ("\n\n", {}, [TextPart("\n\n")]),
        ("<think>so</think>yes", {}, [THOUGHT, TextPart("yes")]),
        (
            "\n<think>\nso\n</think>\n\n yes\n",
            {},
            [ThoughtPart("so\n", "<think>", "</think>"), TextPart("yes\n")],
        ),
        ("<think>\n\n</think>\n\n", {}, [ThoughtPart("", "<think>", "</think>")]),
        ("<think>for ever", {}, [ThoughtPart("for ever", "<think>", None, "</think>")]),
        ("<think>", {}, [ThoughtPart("", "<think>", None, "</think>")]),
        ("a <think>b</think>", {}, [TextPart("a <think>b</think>")]),
        ("\nso</think>\n\nyes", {"starts_thinking": True}, [THOUGHT, TextPart("yes")]),
        (
            "<think>END</think>\n\nyes END no",
            {"stop": ["END", "\n\n"]},
            [ThoughtPart("END", "<think>", "</think>"), TextPart("yes ")],
        ),
        (
            CALLS,
            {"calls": True},
            [
                ThoughtPart("no {}", "<think>", "</think>"),
                TextPart("first"),
                *(CallStarted("f"), CallArguments('{"a":1}')),
                *(CallStarted("g"), CallArguments("{}")),
            ],
        ),
        ("<call>f</call>", {}, [TextPart("f")]),
        ("a<call>f END", {"calls": True, "stop": ["END"]}, [TextPart("a<call>f ")]),
    ],
)
def test_thinking_and_calls_are_taken_out(
    tokenizer: Tokenizer, text: str, given: dict[str, Any], pieces: list[Piece]
) -> None:
    choice = _choice(tokenizer, **given)
    assert pieces_of(choice, text) == pieces
    assert choice.stop == ("END" if "stop" in given else None)


def test_the_marker_is_reported_at_once_and_not_counted(
    tokenizer: Tokenizer,
) -> None:
    start, *thought = tokenizer.encode("<think>so it is", add_special_tokens=False)
    assert _choice(tokenizer).feed(start)[1] == [ThoughtPart("", "<think>", None)]
    for end in ("</think>yes", ""):
        pieces_of(choice := _choice(tokenizer), f"<think>so it is{end}")
        assert choice.num_thought_tokens == len(thought)


def test_a_label_behind_the_marker_is_no_thought(byte_level_dir: Path) -> None:
    markers = ["<|channel>", "<channel|>"]
    tokenizer = _with_tokens(byte_level_dir, special=True, tokens=markers)
    for written, thought in (
        *(("thought\nso", "so"), ("thoughtful", "ful"), ("tho", "tho")),
        *(("thought", ""), ("so", "so")),
    ):
        expected = [ThoughtPart(thought, *markers), TextPart("yes")]
        assert pieces_of(_choice(tokenizer), f"<|channel>{written}<channel|>yes") == expected


WORDS = [
    *("<think>", "</think>", "\n", " ", "so", "yes", "END", "E", "<call>", "</call>", "f {}", "🙂"),
]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=14).map("".join)


@given(text=TEXTS, starts_thinking=st.booleans(), calls=st.booleans())
def test_nothing_is_lost(
    tokenizer: Tokenizer, text: str, starts_thinking: bool, calls: bool
) -> None:
    """Thought, text and calls hold every character that is no white space and no marker of theirs,
    in order."""
    choice = _choice(tokenizer, starts_thinking=starts_thinking, calls=calls)
    streamed = ""
    for piece in pieces_of(choice, text):
        match piece:
            case ThoughtPart(text=thought, opens=opens, closes=closes):
                streamed += (opens or "") + thought + (closes or "")
            case TextPart(text=visible):
                streamed += visible
            case CallStarted(name=name):
                streamed += f"<call>{name}"
            case CallArguments(fragment=fragment):
                streamed += f"{fragment}</call>"
    expected = ("<think>" if starts_thinking else "") + text
    assert _squeezed(streamed) == _squeezed(expected)


def _squeezed(text: str) -> str:
    """Returns the text without what may come and go: white space, hidden special tokens, empty
    arguments, and an opening marker that stands inside an open block."""
    for word in ("<call>", "</call>", "{}", "<think>", " ", "\n"):
        text = text.replace(word, "")
    return text


def _with_tokens(directory: Path, *, special: bool, tokens: list[str]) -> Tokenizer:
    backend = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    add = backend.add_special_tokens if special else backend.add_tokens
    add(tokens)
    return Tokenizer(backend.to_str(), {})


def test_known_pairs_of_one_token_each(byte_level_dir: Path, sentencepiece_dir: Path) -> None:
    for pair in reasoning.MARKER_PAIRS:
        for special in (True, False):
            tokenizer = _with_tokens(byte_level_dir, special=special, tokens=list(pair))
            found = reasoning.find_markers(tokenizer, None)
            assert found is not None and (found.opens, found.closes) == pair
            assert found.start_token_id != found.end_token_id
    half = _with_tokens(byte_level_dir, special=True, tokens=["<think>"])
    for tokenizer in (Tokenizer.load(byte_level_dir), Tokenizer.load(sentencepiece_dir), half):
        assert reasoning.find_markers(tokenizer, "<think></think>") is None
    both = ["<think>", "</think>", "[THINK]", "[/THINK]"]
    tokenizer = _with_tokens(byte_level_dir, special=True, tokens=both)
    for template, opens in (("{{ '[THINK]' }}{{ '[/THINK]' }}", "[THINK]"), ("none", "<think>")):
        found = reasoning.find_markers(tokenizer, template)
        assert found is not None and found.opens == opens


@each_case(
    ("prompt", "is_open"),
    [
        *((f"Hi<think>{space}", True) for space in ("", "\n", "\n\n")),
        *((one, False) for one in ("Hi<think>\n\n</think>\n\n", "Hi<think>so", "Hi", "")),
    ],
)
def test_open_blocks(
    tokenizer: Tokenizer, markers: reasoning.ReasoningMarkers, prompt: str, is_open: bool
) -> None:
    token_ids = tokenizer.encode(prompt, add_special_tokens=False)
    assert reasoning.opens_block(token_ids, markers, tokenizer) is is_open
    assert not reasoning.opens_block(token_ids, None, tokenizer)


def _kinds(tokenizer: Tokenizer, splitter: reasoning.ThinkingSplitter, text: str) -> str:
    order = (TokenKind.OPENS, TokenKind.THOUGHT, TokenKind.CLOSES, TokenKind.ANSWER)
    letters = dict(zip(order, "(t)a", strict=True))
    ids = tokenizer.encode(text, add_special_tokens=False)
    kinds = [letters[splitter.feed(token_id, "")[0]] for token_id in ids]
    return "".join(letter for letter, _ in itertools.groupby(kinds))


@each_case(
    ("text", "is_open", "kinds"),
    [
        ("<think>so</think>yes", False, "(t)a"),
        ("\n<think>so</think>\nyes", False, "a(t)a"),
        ("<think></think><think>more</think>yes", False, "()(t)a"),
        ("yes, <think>is a marker</think>", False, "a"),
        ("yes</think>", False, "a"),
        ("<think>a<think>b</think>yes", False, "(t)a"),
        ("<think>for ever", False, "(t"),
        ("so</think>yes", True, "t)a"),
    ],
)
def test_where_tokens_belong(
    tokenizer: Tokenizer, markers: reasoning.ReasoningMarkers, text: str, is_open: bool, kinds: str
) -> None:
    splitter = reasoning.ThinkingSplitter(tokenizer, markers, is_open=is_open)
    assert _kinds(tokenizer, splitter, text) == kinds
    if not is_open:
        assert _kinds(tokenizer, reasoning.ThinkingSplitter(tokenizer, None), text) == "a"
