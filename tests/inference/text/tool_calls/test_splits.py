"""However an answer's text is cut, the parts parse to the same; and no text makes a parser fail."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inference.protocol.generation import ToolDefinition
from inference.text.answers.parts import CallArguments, CallStarted
from inference.text.tool_calls.call_parser import CallParser
from tests.cases import each_case
from tests.inference.text.tool_calls.calls import FORMATS, merged, parts_of, read

FRAGMENTS = {
    "hermes": ["<tool_call>", "</tool_call>", "<tool", "</tool_c"],
    "qwen_coder": [
        *("<tool_call>", "</tool_call>", "<function=bash>", "<function=new>", "</function>"),
        *("<parameter=command>", "<parameter=mode>", "<parameter=tags>", "</parameter>"),
        *("<function=", "<parameter=", "</", "</para", "7", "null", '["a"]'),
    ],
    "llama3": [
        *("<|python_tag|>", "<|py", "[bash(command='l')]", "bash(", "a=1", "b='x'", ")", "(", "'"),
        *(";", '[now(), get_weather(city="P", days=2)]', "True", "null"),
    ],
    "mistral": ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "abc123def", "bash", "[TOOL", "now"],
}
JSON_FRAGMENTS = [
    *('{"name": "bash", "arguments": {"command": "', '{"name": "now"', '"arguments": {', "{}"),
    *('{"arguments": {"name": "bash", "command": "ls"}}', '{"arguments": "{\\"command\\": 1}"'),
    *(
        '{"parameters": {"city": "P"}, "name": "get_weather"}',
        '"name"',
        ":",
        ",",
        '"',
        "\\",
        "\\u00e",
    ),
    *(
        "{",
        "}",
        "[",
        "]",
        "}}",
        "}}}",
        "}}}}",
        "1",
        "-",
        "2.5e",
        "true",
        "nul",
        "\n",
        " ",
        "é🙂",
        "\x01",
    ),
]


def answers(name: str) -> st.SearchStrategy[str]:
    fragments = [*FRAGMENTS[name.removesuffix("_named")], *JSON_FRAGMENTS]
    return st.lists(st.sampled_from(fragments) | st.text(max_size=4), max_size=14).map("".join)


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
def test_any_split_gives_the_same_parts(name: str, data: st.DataObject) -> None:
    text = data.draw(answers(name))
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12))
    borders = sorted({0, len(text), *cuts})
    chunks = [text[start:end] for start, end in itertools.pairwise(borders)]
    whole = read(FORMATS[name], text)
    assert merged(parts_of(FORMATS[name], chunks)) == whole
    assert merged(parts_of(FORMATS[name], text)) == whole


@pytest.mark.parametrize("name", ["hermes", "qwen_coder", "mistral", "mistral_named"])
@given(text=st.text() | st.text('<tol_ca>[]{}fp/=\n "'))
@example(text=" \n ")
def test_text_without_markers_is_unchanged(name: str, text: str) -> None:
    assert read(FORMATS[name], text) == ([text] if text else [])


@given(text=st.text() | st.text('[]{}()"abc:=,\n ', max_size=30))
def test_llama_text_without_calls_is_unchanged(text: str) -> None:
    parts = read(FORMATS["llama3"], text, [])
    if not any(isinstance(part, tuple) for part in parts):
        assert parts == ([text] if text else [])


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.text(), VALUES, max_size=4)
WRITTEN = {
    "hermes": '<tool_call>\n{{"name": "f", "arguments": {}}}\n</tool_call>',
    "llama3": '{{"name": "f", "parameters": {}}}',
    "mistral": '[TOOL_CALLS][{{"name": "f", "arguments": {}}}]',
    "mistral_named": "[TOOL_CALLS]f[ARGS]{}",
}


@pytest.mark.parametrize("name", WRITTEN)
@given(arguments=ARGUMENTS, indent=st.none() | st.integers(0, 2), is_ascii=st.booleans())
def test_json_arguments_come_through(
    name: str, arguments: dict[str, object], indent: int | None, is_ascii: bool
) -> None:
    written = json.dumps(arguments, indent=indent, ensure_ascii=is_ascii)
    ((called, streamed),) = read(FORMATS[name], WRITTEN[name].format(written))
    assert called == "f"
    assert json.loads(streamed) == arguments


@pytest.mark.parametrize("name", WRITTEN)
@given(arguments=ARGUMENTS, data=st.data())
def test_a_call_that_is_cut_off_is_still_json(
    name: str, arguments: dict[str, object], data: st.DataObject
) -> None:
    text = WRITTEN[name].format(json.dumps(arguments))
    cut = text[: data.draw(st.integers(0, len(text)))]
    parts = read(FORMATS[name], cut)
    if any(isinstance(part, str) for part in parts):
        assert parts == [cut]


@each_case("name", WRITTEN)
def test_arguments_are_reported_as_they_come(name: str) -> None:
    text = WRITTEN[name].format('{"a": "' + "x" * 100 + '"}')
    """Where a grammar holds the answer to calls."""
    parser = FORMATS[name].parser([])
    assert isinstance(parser, CallParser)
    parser.streams_arguments = True
    begin = text.index("x") + 1
    parser.feed(text[:begin])
    for _ in range(99):
        assert [part.fragment for part in parser.feed("x")] == ["x"]


@each_case("name", WRITTEN)
def test_nothing_of_a_call_is_reported_before_it_is_whole(name: str) -> None:
    text = WRITTEN[name].format('{"a": "' + "x" * 9 + '"}')
    parser = FORMATS[name].parser([])
    for character in text[:-1]:
        assert parser.feed(character) == []
    assert [*parser.feed(text[-1]), *parser.flush()] == [
        CallStarted("f"),
        CallArguments('{"a":"xxxxxxxxx"}'),
    ]


@each_case("name", WRITTEN)
def test_streamed_arguments_that_are_cut_off_stay_unfinished(name: str) -> None:
    parser = FORMATS[name].parser([])
    assert isinstance(parser, CallParser)
    parser.streams_arguments = True
    text = WRITTEN[name].format('{"a": "xy", "b": 1}')
    parts = [*parser.feed(text[: text.index("y") + 1]), *parser.flush()]
    assert parts == [CallStarted("f"), CallArguments('{"a":"xy')]


SCHEMA_WORDS = st.sampled_from(
    [
        *("type", "properties", "required", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"),
        *("items", "nullable", "string", "integer", "object", "null", "#", "#/properties/a"),
        *("command", "city", "bash"),
    ]
)
SCHEMAS = st.dictionaries(
    SCHEMA_WORDS,
    st.recursive(
        st.none() | st.booleans() | st.integers(-2, 2) | SCHEMA_WORDS,
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(SCHEMA_WORDS, inner, max_size=3)
        ),
        max_leaves=10,
    ),
    max_size=4,
)


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data(), schema=SCHEMAS)
def test_no_schema_makes_a_parser_fail(
    name: str, data: st.DataObject, schema: dict[str, object]
) -> None:
    tools = [ToolDefinition(name="bash", path="", parameters=schema)]
    read(FORMATS[name], data.draw(answers(name)), tools)
    if name == "qwen_coder":
        arguments = "<parameter=command>\n1\n</parameter><parameter=city>\na\n</parameter>"
        ((called, _),) = read(FORMATS[name], f"<function=bash>{arguments}</function>", tools)
        assert called == "bash"
    elif name == "hermes":
        read(FORMATS[name], '<tool_call>{"arguments": {"command": 1}}</tool_call>', tools)
