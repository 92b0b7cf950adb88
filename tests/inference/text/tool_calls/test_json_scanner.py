"""What the scanner writes is JSON once it is complete."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from inference.text.tool_calls.json_scanner import MAX_DEPTH, JsonScanner, ReadState
from tests.cases import each_case

TEXTS = st.lists(
    st.sampled_from([*'{}[]":,\\ \n\x00-+.0123eEua', "true", "null", "None", "\\u00", '":', "é"])
    | st.text(max_size=2)
).map("".join)


def _scan(text: str) -> tuple[ReadState, str]:
    scanner = JsonScanner()
    scanner.feed(text)
    return scanner.state, scanner.take()


@given(text=TEXTS)
def test_what_is_complete_is_json(text: str) -> None:
    scanner = JsonScanner()
    stop = scanner.feed("{" + text)
    assert stop <= len(text) + 1
    if scanner.state is ReadState.COMPLETE:
        assert isinstance(json.loads(scanner.take()), dict)


@given(text=TEXTS)
def test_valid_json_is_read_as_it_is(text: str) -> None:
    try:
        value = json.loads(text, parse_constant=float)
    except ValueError:
        return
    scanner = JsonScanner()
    scanner.feed(text + " ")
    if scanner.state is ReadState.COMPLETE:
        assert json.loads(scanner.take()) == value
    else:
        assert "NaN" in text or "Infinity" in text


def test_it_stops_behind_the_value() -> None:
    scanner = JsonScanner()
    assert scanner.feed('[1, {"a": "]"}] rest') == len('[1, {"a": "]"}]')
    assert scanner.state is ReadState.COMPLETE
    assert scanner.take() == '[1,{"a":"]"}]'


@each_case("text", ["}", "{1", "[1}", '{"a" 1', '{"a": b ', "[01 ", "[1 2", "{,", "[,"])
def test_what_is_no_json_breaks_it(text: str) -> None:
    assert _scan(text)[0] is ReadState.BROKEN


def test_depth_is_bounded() -> None:
    assert _scan("[" * MAX_DEPTH)[0] is ReadState.RUNNING
    assert _scan("[" * (MAX_DEPTH + 1))[0] is ReadState.BROKEN


def test_a_number_has_a_bound() -> None:
    assert _scan("[" + "1" * 400 + ",")[0] is ReadState.RUNNING
    assert _scan("[" + "1" * 401 + ",")[0] is ReadState.BROKEN
    assert _scan("[" + "1" * 100_000)[0] is ReadState.BROKEN
