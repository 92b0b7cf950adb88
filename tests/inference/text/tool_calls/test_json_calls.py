"""Where an object ends, and what its usual mistakes stand for."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.text.tool_calls.argument_values import MAX_DEPTH
from inference.text.tool_calls.json_calls import read_object
from tests.cases import each_case

TEXTS = st.lists(
    st.sampled_from([*'{}[]":,\\ \n\x00-+.0123eEua', "true", "null", "None", "\\u00", '":', "é"])
    | st.text(max_size=2)
).map("".join)
REPAIRS: dict[str, tuple[str, str]] = {
    "white space": ('{ "a" :\n[ 1 , " b " ] }', '{"a":[1," b "]}'),
    "Python's words": ('{"a":[True, False, None]}', '{"a":[true,false,null]}'),
    "numbers as they are written": ('{"a":[1.10e999, -0, 2E+1]}', '{"a":[1.10e999,-0,2E+1]}'),
    "a line break in a string": ('{"a":"a\n\tb"}', '{"a":"a\\n\\tb"}'),
    "escapes that JSON does not have": (
        r'{"a":"\d \' \u12 \u00e9 \" \n"}',
        r"""{"a":"\\d ' \\u12 \u00e9 \" \n"}""",
    ),
    "a backslash before a line break": ('{"a":"\\\n"}', '{"a":"\\\\\\n"}'),
}
NO_JSON = [
    *('{"a":b}', '{"a":01}', '{"a":[tru]}', '{"a":1e}', '{"a":"b}', '{"a":[,]}', "{,}", "{1}"),
    *('{"a" 1}', '{"a":[1 2]}', '{"a":1 2}', '{"a":"b" "c"}', '{"a":[1,,2]}', '{"a":é}'),
    *('{"a":{"b":1', '{"a":[1', '{"a":1,', '{"a":1,"a":2}'),
]


@given(text=TEXTS)
def test_what_is_whole_is_json_or_refused(text: str) -> None:
    try:
        written = read_object("{" + text, 0)
    except ValueError:
        return
    assert json.loads(written.text, strict=False) == written.value
    assert written.end <= len(text) + 1


@given(text=TEXTS)
def test_valid_json_is_read_as_it_is(text: str) -> None:
    try:
        value = json.loads(f'{{"a":[{text}]}}', parse_constant=float)
    except ValueError:
        return
    if "NaN" not in text and "Infinity" not in text and '"' not in text:
        written = read_object(f'{{"a":[{text}]}} rest', 0)
        assert written.value == json.loads(written.text) == value
        assert written.end == len(text) + len('{"a":[]}')
        assert not written.has_trailing_comma
        assert not written.lacks_brace


@each_case("name", REPAIRS)
def test_usual_mistakes_are_repaired(name: str) -> None:
    text, meant = REPAIRS[name]
    written = read_object(text, 0)
    assert (written.text, written.has_trailing_comma) == (meant, False)


@each_case("text", ['{"a":1,}', '{"a":[1,]}', '{"a":[1,],"b":2}'])
def test_trailing_commas_are_left_out_and_reported(text: str) -> None:
    written = read_object(text, 0)
    assert written.text == text.replace(",}", "}").replace(",]", "]")
    assert written.has_trailing_comma


@each_case("text", ['{"a":1', '{"a":1]', '{"a":1 </x>'])
def test_its_own_missing_brace_is_reported(text: str) -> None:
    written = read_object(text, 0)
    assert (written.value, written.lacks_brace) == ({"a": 1}, True)


@each_case("text", NO_JSON)
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        read_object(text, 0)


def test_a_number_has_a_bound() -> None:
    assert read_object(f'{{"a":{"1" * 400}}}', 0).value == {"a": int("1" * 400)}
    with pytest.raises(ValueError, match="word"):
        read_object(f'{{"a":{"1" * 401}}}', 0)


def test_depth_has_a_bound() -> None:
    inner = '{"a":' + "[" * (MAX_DEPTH - 1)
    assert read_object(inner + "]" * (MAX_DEPTH - 1) + "}", 0).end == len(inner) + MAX_DEPTH
    with pytest.raises(ValueError, match="brackets"):
        read_object(inner + "[" + "]" * MAX_DEPTH + "}", 0)
