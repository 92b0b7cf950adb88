"""Where a value ends, and what its usual mistakes stand for."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.text.tool_calls.json_text import (
    MAX_DEPTH,
    JsonCopy,
    ReadState,
    member_texts,
    read_json,
    repaired,
)
from tests.cases import each_case

TEXTS = st.lists(
    st.sampled_from([*'{}[]":,\\ \n\x00-+.0123eEua', "true", "null", "None", "\\u00", '":', "é"])
    | st.text(max_size=2)
).map("".join)
REPAIRS: dict[str, tuple[str, str]] = {
    "white space": ('{ "a" :\n[ 1 , " b " ] }', '{"a":[1," b "]}'),
    "Python's words": ("[True, False, None]", "[true,false,null]"),
    "numbers as they are written": ("[1.10e999, -0, 2E+1]", "[1.10e999,-0,2E+1]"),
    "a line break in a string": ('["a\n\tb"]', '["a\\n\\tb"]'),
    "escapes that JSON does not have": (
        r'["\d \' \u12 \u00e9 \" \n"]',
        r"""["\\d ' \\u12 \u00e9 \" \n"]""",
    ),
    "a backslash before a line break": ('["\\\n"]', '["\\\\\\n"]'),
}
BROKEN = ["{1", "[1}", '{"a" 1', "[1 2", "{,", "[,", "[1,,", '["a" "', "[é", "[}", "{]"]


def _copy(text: str) -> JsonCopy:
    copy = JsonCopy()
    copy.feed(text, 0)
    return copy


@given(text=TEXTS)
def test_what_is_whole_is_json_or_refused(text: str) -> None:
    copy = JsonCopy()
    assert copy.feed("{" + text, 0) <= len(text) + 1
    if copy.state is ReadState.COMPLETE:
        try:
            written, _ = repaired(copy.text)
            value = read_json(written)
        except ValueError:
            return
        assert isinstance(value, dict)
        assert {key: read_json(one) for key, one in member_texts(written).items()} == value


@given(text=TEXTS)
def test_valid_json_is_read_as_it_is(text: str) -> None:
    try:
        value = json.loads(f"[{text}]", parse_constant=float)
    except ValueError:
        return
    copy = _copy(f"[{text}] ")
    assert copy.state is ReadState.COMPLETE
    if "NaN" not in text and "Infinity" not in text:
        written, has_trailing_comma = repaired(copy.text)
        assert json.loads(written) == value
        assert not has_trailing_comma


@given(text=TEXTS, cut=st.integers(0, 20))
def test_pieces_are_copied_to_the_same(text: str, cut: int) -> None:
    whole, text = _copy("{" + text), "{" + text
    copy = JsonCopy()
    stop = copy.feed(text[: cut + 1], 0)
    if copy.state is ReadState.RUNNING:
        assert stop == len(text[: cut + 1])
        copy.feed(text[cut + 1 :], 0)
    assert (copy.state, copy.take()) == (whole.state, whole.take())


def test_it_stops_behind_the_value() -> None:
    copy = JsonCopy()
    assert copy.feed('[1, {"a": "]"}] rest', 0) == len('[1, {"a": "]"}]')
    assert copy.state is ReadState.COMPLETE
    assert copy.take() == '[1,{"a":"]"}]'


def test_it_stops_behind_the_keys_of_the_object_itself() -> None:
    copy = JsonCopy(stops_behind_keys=True)
    text = '{"a": {"b": ":"}, "c": 1}'
    assert copy.feed(text, 0) == text.index(" {")
    assert copy.is_behind_key
    assert copy.feed(text, text.index(" {")) == text.index(" 1")
    assert copy.feed(text, text.index(" 1")) == len(text)
    assert not copy.is_behind_key


@each_case("name", REPAIRS)
def test_usual_mistakes_are_repaired(name: str) -> None:
    text, meant = REPAIRS[name]
    written, has_trailing_comma = repaired(_copy(text).text)
    assert written == meant
    assert not has_trailing_comma
    read_json(written)


@each_case("text", ['{"a":1,}', "[1,]", '{"a":[1,],"b":2}'])
def test_trailing_commas_are_left_out_and_reported(text: str) -> None:
    written, has_trailing_comma = repaired(text)
    assert written == text.replace(",}", "}").replace(",]", "]")
    assert has_trailing_comma


@each_case("text", BROKEN)
def test_it_breaks_at_what_cannot_follow(text: str) -> None:
    assert _copy(text).state is ReadState.BROKEN
    assert _copy(text[:-1]).state is ReadState.RUNNING


@each_case("text", ['{"a":b}', "[01]", "[tru]", "[1e]", '["a]', "[,]", "{,}"])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"comma|string|word"):
        repaired(text)


def test_depth_is_bounded() -> None:
    assert _copy("[" * MAX_DEPTH).state is ReadState.RUNNING
    assert _copy("[" * (MAX_DEPTH + 1)).state is ReadState.BROKEN


def test_a_number_has_a_bound() -> None:
    assert repaired(f"[{'1' * 400}]") == (f"[{'1' * 400}]", False)
    with pytest.raises(ValueError, match="word"):
        repaired(f"[{'1' * 401}]")
