"""Calls of newer families: golden cases, whole and in pieces, and any text at all."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from inference.text.tool_calls.call_parser import CallParser
from tests.cases import each_case
from tests.inference.text.tool_calls.calls import TOOLS, merged, parts_of, read
from tests.inference.text.tool_calls.family_cases import CASES, FAMILIES

EXAMPLES = [(name, case) for name, cases in CASES.items() for case in cases]


def test_every_family_has_cases() -> None:
    assert CASES.keys() == FAMILIES.keys()


@each_case(("name", "case"), EXAMPLES)
def test_a_published_answer_is_read(name: str, case: str) -> None:
    text, expected = CASES[name][case]
    assert read(FAMILIES[name], text) == expected


@each_case(("name", "case"), EXAMPLES)
def test_its_pieces_give_the_same(name: str, case: str) -> None:
    text, expected = CASES[name][case]
    for size in (1, 2, 3, 7):
        chunks = [text[start : start + size] for start in range(0, len(text), size)]
        assert merged(parts_of(FAMILIES[name], chunks)) == expected, size


@each_case("name", FAMILIES)
def test_text_without_markers_is_unchanged(name: str) -> None:
    for text in ("Hello\n\n {x} [1] <b>", " \n ", "<|", "a: <tool", "```json\n{}\n```"):
        assert read(FAMILIES[name], text) == [text], text


def _fragments() -> st.SearchStrategy[tuple[str, str]]:
    """A family, and pieces of its golden answers in any order."""

    def pieces(name: str) -> st.SearchStrategy[tuple[str, str]]:
        texts = [text for text, _ in CASES[name].values()]
        cut = st.tuples(st.sampled_from(texts), st.integers(0, 80), st.integers(1, 40))
        piece = cut.map(lambda one: one[0][one[1] : one[1] + one[2]])
        return st.lists(piece, max_size=6).map(lambda many: (name, "".join(many)))

    return st.sampled_from(list(FAMILIES)).flatmap(pieces)


@settings(max_examples=150)
@given(written=_fragments())
def test_any_answer_reads_the_same_whole_and_in_pieces(written: tuple[str, str]) -> None:
    name, text = written
    whole = read(FAMILIES[name], text)
    assert merged(parts_of(FAMILIES[name], text)) == whole
    calls = [part for part in whole if not isinstance(part, str)]
    if not calls:
        assert "".join(map(str, whole)) == text


def test_arguments_are_reported_as_they_come() -> None:
    """Where a grammar holds the answer to calls."""
    parser = FAMILIES["kimi"].parser(TOOLS)
    assert isinstance(parser, CallParser)
    parser.streams_arguments = True
    parser.feed('<|tool_call_begin|>bash:0<|tool_call_argument_begin|>{"command": "x')
    for _ in range(50):
        assert [part.fragment for part in parser.feed("x")] == ["x"]
