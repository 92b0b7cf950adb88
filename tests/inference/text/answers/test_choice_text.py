"""However the tokens come, an answer is taken apart into the same thought, text and calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from inference.text.answers.choice_text import ChoiceText, Piece, ThoughtPart
from inference.text.answers.parts import CallArguments, CallStarted, TextPart
from inference.text.answers.reasoning import find_markers
from inference.text.tokens.tokenizer import Tokenizer
from tests.cases import each_case
from tests.inference.text.answers.pieces import pieces_of
from tests.inference.text.marked_calls import MarkedCalls


def _choice(tokenizer: Tokenizer, *, calls: bool = False, **kwargs: object) -> ChoiceText:
    form = MarkedCalls()
    return ChoiceText(
        tokenizer,
        markers=find_markers(tokenizer, None),
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


def test_the_marker_is_reported_at_once(tokenizer: Tokenizer) -> None:
    (start,) = tokenizer.encode("<think>", add_special_tokens=False)
    assert _choice(tokenizer).feed(start)[1] == [ThoughtPart("", "<think>", None)]


@each_case("text", ["<think>so it is</think>yes", "<think>so it is"])
def test_thought_tokens_are_counted_without_markers(tokenizer: Tokenizer, text: str) -> None:
    choice = _choice(tokenizer)
    pieces_of(choice, text)
    thought = tokenizer.encode("so it is", add_special_tokens=False)
    assert choice.num_thought_tokens == len(thought)


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
    expected = [ThoughtPart(thought, "<|channel>", "<channel|>"), TextPart("yes")]
    assert pieces_of(_choice(Tokenizer(backend.to_str(), {})), text) == expected


WORDS = [
    *("<think>", "</think>", "\n", " ", "so", "yes", "END", "E", "<call>", "</call>", "f {}", "🙂"),
]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=14).map("".join)


@given(text=TEXTS, starts_thinking=st.booleans(), calls=st.booleans())
def test_nothing_visible_is_lost(
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
