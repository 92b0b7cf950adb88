"""However the tokens come, an answer is taken apart into the same thought, text and calls."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from inference.text.answers.choice_text import ChoiceText, Piece, ThoughtPart, merged
from inference.text.answers.parts import CallArguments, CallStarted, TextPart
from inference.text.answers.reasoning import find_markers
from inference.text.tokens.tokenizer import Tokenizer
from tests.cases import each_case
from tests.inference.text.marked_calls import MarkedCalls


@pytest.fixture(scope="module")
def tokenizer(thinking_dir: Path) -> Tokenizer:
    return Tokenizer.load(thinking_dir)


def _choice(tokenizer: Tokenizer, *, calls: bool = False, **kwargs: object) -> ChoiceText:
    form = MarkedCalls()
    return ChoiceText(
        tokenizer,
        markers=find_markers(tokenizer, None),
        tool_calls=form.parser([]) if calls else None,
        shown_token_ids=form.shown_token_ids(tokenizer) if calls else frozenset(),
        **kwargs,  # type: ignore[arg-type]
    )


def _run(choice: ChoiceText, text: str) -> list[Piece]:
    pieces: list[Piece] = []
    for token_id in choice.tokenizer.encode(text, add_special_tokens=False):
        pieces += choice.feed(token_id)[1]
        if choice.stop is not None:
            return merged(pieces)
    return merged([*pieces, *choice.flush()[1]])


@each_case(
    ("text", "pieces"),
    [
        ("Straße", [TextPart("Straße")]),
        ("\n\nStraße", [TextPart("\n\nStraße")]),
        ("\n\n", [TextPart("\n\n")]),
        ("<think>so</think>yes", [ThoughtPart("so", "<think>", "</think>"), TextPart("yes")]),
        (
            "\n<think>\nso\n</think>\n\n yes\n",
            [ThoughtPart("so\n", "<think>", "</think>"), TextPart("yes\n")],
        ),
        ("<think></think>", [ThoughtPart("", "<think>", "</think>")]),
        ("<think>\n\n</think>\n\n", [ThoughtPart("", "<think>", "</think>")]),
        ("<think>for ever", [ThoughtPart("for ever", "<think>", None, "</think>")]),
        ("<think>", [ThoughtPart("", "<think>", None, "</think>")]),
        ("a <think>b</think>", [TextPart("a <think>b</think>")]),
    ],
)
def test_thinking_is_taken_out(tokenizer: Tokenizer, text: str, pieces: list[Piece]) -> None:
    assert _run(_choice(tokenizer), text) == pieces


def test_a_block_that_the_prompt_opened(tokenizer: Tokenizer) -> None:
    pieces = _run(_choice(tokenizer, starts_thinking=True), "\nso</think>\n\nyes")
    assert pieces == [ThoughtPart("so", "<think>", "</think>"), TextPart("yes")]


def test_the_marker_is_reported_at_once(tokenizer: Tokenizer) -> None:
    (start,) = tokenizer.encode("<think>", add_special_tokens=False)
    assert _choice(tokenizer).feed(start)[1] == [ThoughtPart("", "<think>", None)]


def test_thought_tokens_are_counted_without_markers(tokenizer: Tokenizer) -> None:
    for text in ("<think>so it is</think>yes", "<think>so it is"):
        choice = _choice(tokenizer)
        _run(choice, text)
        thought = tokenizer.encode("so it is", add_special_tokens=False)
        assert choice.num_thought_tokens == len(thought)


def test_stop_strings_are_not_looked_for_in_thoughts(tokenizer: Tokenizer) -> None:
    choice = _choice(tokenizer, stop=["END", "\n\n"])
    pieces = _run(choice, "<think>END</think>\n\nyes END no")
    assert pieces == [ThoughtPart("END", "<think>", "</think>"), TextPart("yes ")]
    assert choice.stop == "END"


def test_calls_are_taken_out_of_the_visible_text(tokenizer: Tokenizer) -> None:
    text = '<think><call>no {}</call></think>\nfirst<call>f {"a": 1}</call><call>g</call>'
    assert _run(_choice(tokenizer, calls=True), text) == [
        ThoughtPart("no {}", "<think>", "</think>"),
        TextPart("first"),
        CallStarted("f"),
        CallArguments('{"a": 1}'),
        CallStarted("g"),
        CallArguments("{}"),
    ]


@each_case(
    ("text", "thought"),
    [
        ("<|channel>thought\nso<channel|>yes", "so"),
        ("<|channel>thoughtful<channel|>yes", "ful"),
        ("<|channel>tho<channel|>yes", "tho"),
        ("<|channel>thought<channel|>yes", ""),
        ("<|channel>so<channel|>yes", "so"),
    ],
)
def test_a_label_behind_the_marker_is_no_thought(
    byte_level_dir: Path, text: str, thought: str
) -> None:
    backend = tokenizers.Tokenizer.from_file(str(byte_level_dir / "tokenizer.json"))
    backend.add_special_tokens(["<|channel>", "<channel|>"])
    choice = _choice(Tokenizer(backend.to_str(), {}))
    assert _run(choice, text) == [
        ThoughtPart(thought, "<|channel>", "<channel|>"),
        TextPart("yes"),
    ]


def test_special_tokens_have_no_text_where_nobody_needs_it(tokenizer: Tokenizer) -> None:
    assert _run(_choice(tokenizer), "<call>f</call>") == [TextPart("f")]


def test_a_stop_string_flushes_the_parser(tokenizer: Tokenizer) -> None:
    choice = _choice(tokenizer, calls=True, stop=["END"])
    assert _run(choice, "a<call>f END") == [TextPart("a<call>f ")]


TEXTS = st.lists(
    st.sampled_from(
        [
            "<think>",
            "</think>",
            "\n",
            " ",
            "so",
            "yes",
            "END",
            "E",
            "<call>",
            "</call>",
            "f {}",
            "🙂",
        ]
    ),
    max_size=14,
).map("".join)


@given(text=TEXTS, starts_thinking=st.booleans(), calls=st.booleans())
def test_nothing_visible_is_lost(
    tokenizer: Tokenizer, text: str, starts_thinking: bool, calls: bool
) -> None:
    """Thought, text and calls hold every character that is no white space and no marker of theirs,
    in order."""
    choice = _choice(tokenizer, starts_thinking=starts_thinking, calls=calls)
    streamed = ""
    for piece in _run(choice, text):
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
