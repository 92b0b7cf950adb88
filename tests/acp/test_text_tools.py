"""Thoughts and calls in a text that streams: the same wherever it is cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from helexa_acp.text_tools import Kind, Splitter
from tests.cases import each_case

T, H, C = Kind.TEXT, Kind.THOUGHT, Kind.CALL
CASES = [
    ("Hello.", [(T, "Hello.")]),
    ("<think>Hm.</think>\n\nHello.", [(H, "Hm."), (T, "Hello.")]),
    ("\n<think>\nHm.\n</think>Hello.", [(H, "\nHm.\n"), (T, "Hello.")]),
    ("[THINK]Hm.[/THINK]Hello.", [(H, "Hm."), (T, "Hello.")]),
    ("<think>cut off", [(H, "cut off")]),
    ("A <think> in prose", [(T, "A <think> in prose")]),
    ("<thin", [(T, "<thin")]),
    ("<b>bold</b>", [(T, "<b>bold</b>")]),
    ('a<tool_call>{"x"}</tool_call>b', [(T, "a"), (C, '{"x"}'), (T, "b")]),
    ("<tool_call>1</tool_call><tool_call>2</tool_call>", [(C, "1"), (C, "2")]),
    ("<think>h</think><tool_call>1</tool_call>", [(H, "h"), (C, "1")]),
    ("<tool_call>never closed", [(C, "never closed")]),
    ("1 < 2 <tool", [(T, "1 < 2 <tool")]),
    ("", []),
]


def split(pieces: list[str], *, finds_calls: bool = True) -> list[tuple[Kind, str]]:
    """Texts and thoughts joined; calls are one each."""
    splitter = Splitter(finds_calls=finds_calls)
    found = [piece for text in pieces for piece in splitter.feed(text)] + splitter.flush()
    joined: list[tuple[Kind, str]] = []
    for piece in found:
        if joined and joined[-1][0] is piece.kind is not Kind.CALL:
            joined[-1] = (piece.kind, joined[-1][1] + piece.text)
        else:
            joined.append((piece.kind, piece.text))
    return joined


@each_case(("text", "expected"), CASES)
def test_whole_and_character_by_character(text: str, expected: list[tuple[Kind, str]]) -> None:
    assert split([text]) == expected
    assert split(list(text)) == expected


def test_calls_are_text_where_nobody_looks_for_them() -> None:
    text = "a<tool_call>1</tool_call>"
    assert split([text], finds_calls=False) == [(T, text)]


PARTS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "[THINK]", "a", " ", "\n", "<", "/"]


@given(st.lists(st.sampled_from(PARTS), max_size=12).map("".join), st.data())
def test_cuts_change_nothing(text: str, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=5).map(sorted))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert split(pieces) == split([text])
