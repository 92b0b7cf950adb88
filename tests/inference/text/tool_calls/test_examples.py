"""Answers as models write them, whole and in pieces; the format of a model, inferred from its
template; and text to the value that a schema asks for."""

from __future__ import annotations

import json
from typing import Any

from inference.text.tool_calls import find_tool_format
from inference.text.tool_calls.argument_values import as_json, is_text
from inference.text.tool_calls.call_parser import CallArguments, CallStarted
from inference.text.tool_calls.tag_formats import DSML, TagFormat
from tests.cases import each_case
from tests.inference.text.tool_calls.calls import (
    FORMATS,
    TOOLS,
    Call,
    Merged,
    merged,
    parts_of,
    read,
    written,
)
from tests.inference.text.tool_calls.conftest import Vocabulary
from tests.inference.text.tool_calls.examples import EXAMPLES

LS, PARIS = ("bash", {"command": "ls"}), ("get_weather", {"city": "Paris", "days": 3})
ONE_CALL, BARE_CALL = ("harmony",), ("llama3", "plain")


@each_case("name", FORMATS)
def test_calls_are_read_with_the_text_around_them_and_are_text_where_cut_off(name: str) -> None:
    calls = [LS, ("now", {}), PARIS]
    texts = [(called, json.dumps(one, separators=(",", ":"))) for called, one in calls]
    for call, text in zip(calls, texts, strict=True):
        assert read(FORMATS[name], written(name, call)) == [text]
    if name not in ONE_CALL:
        assert read(FORMATS[name], written(name, *calls)) == texts
        assert read(FORMATS[name], f"{written(name, LS)}\nDone.") == [texts[0], "Done."]
    if name not in BARE_CALL:
        assert read(FORMATS[name], f"I look.\n{written(name, LS)}") == ["I look.", texts[0]]
    text, whole = written(name, PARIS), texts[-1]
    last_value = text.rindex("3")
    for cut in range(1, len(text)):
        parts = read(FORMATS[name], text[:cut])
        assert parts == [text[:cut]] or (parts == [whole] and cut > last_value), text[:cut]


CLOSING = f"</parameter> </arg_value> </{DSML}parameter> </tool_call> }}]"
NESTED = {"a": [{"b": "x, }y", "c": None}, 1.5, True, ["x", 'y|"z']], "d": {}}


@each_case("name", FORMATS)
@each_case(
    "call",
    [
        ("bash", {"command": "\ncat <<E\n <a> \nE\n"}),
        ("bash", {"command": f"a{CLOSING} b"}),
        ("bash", {"command": '"a"\\n\n\tb</c>'}),
        ("write_file", {"mode": 420, "tags": ["a", "b"], "options": {"a": True}}),
        ("write_file", {"path": "007", "mode": None}),
        ("f", NESTED),
        ("f", {"b": '\\"\u2028\ud7ff🙂', "c": [[], {}, -1e-7, 10**30, False]}),
    ],
)
def test_arguments_are_kept_to_the_character(name: str, call: Call) -> None:
    if call[0] == "f" and isinstance(FORMATS[name], TagFormat):
        return  # without a schema a tag's value is a text
    ((called, arguments),) = read(FORMATS[name], written(name, call))
    assert (called, json.loads(arguments)) == call


@each_case(("name", "text", "expected"), EXAMPLES)
def test_an_example_is_read_whole_and_in_pieces(name: str, text: str, expected: Merged) -> None:
    for size in (len(text), 1, 2, 3, 7):
        chunks = [text[start : start + size] for start in range(0, len(text), size)]
        assert merged(parts_of(FORMATS[name], chunks)) == expected, size
    if name == "mistral":
        assert read(FORMATS["mistral_named"], text) == expected


WRITTEN = {
    "hermes": '<tool_call>\n{{"name": "f", "arguments": {}}}\n</tool_call>',
    "llama3": '{{"name": "f", "parameters": {}}}',
    "mistral": '[TOOL_CALLS][{{"name": "f", "arguments": {}}}]',
    "mistral_named": "[TOOL_CALLS]f[ARGS]{}",
    "kimi": "<|tool_call_begin|>f:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
}


@each_case("name", WRITTEN)
def test_arguments_are_reported_as_they_come_under_a_grammar_else_whole(name: str) -> None:
    text = WRITTEN[name].format('{"a": "' + "x" * 9 + '"}')
    whole = [CallStarted("f"), CallArguments('{"a":"xxxxxxxxx"}')]
    parser = FORMATS[name].parser([])
    assert [part for character in text[:-1] for part in parser.feed(character)] == []
    assert [*parser.feed(text[-1]), *parser.flush()] == whole
    begin = text.index("x") + 1
    parser = FORMATS[name].parser([])
    parser.streams_arguments = True
    begun = parser.feed(text[:begin])
    for _ in range(8):
        begun += (more := parser.feed("x"))
        assert more == [CallArguments("x")]
    assert merged([*begun, CallArguments('"}')]) == merged(whole)
    assert parser.flush() == [], "what is cut off stays unfinished"
    for begun in ('{"a', '{"name": "Alice", "age', '{"type": "object", "properties": {"'):
        parser, text = FORMATS["llama3"].parser(TOOLS), begun + '": ["'
        parts = [part for character in text for part in parser.feed(character)]
        assert merged(parts) == [text], "an answer in JSON is not held back"


SHOWN = "{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
TEMPLATES = {
    "hermes": '<tool_call>\n{"name": <name>, "arguments": <arguments>}\n</tool_call>',
    "qwen_coder": "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>",
    "llama3": 'Respond in the format {"name": …, "parameters": dictionary of argument name}',
    "mistral": "[TOOL_CALLS][{{ call | tojson }}]",
    "mistral_named": "'[TOOL_CALLS]' + name + '[ARGS]' + arguments",
    "glm": "<tool_call>{{ name }}\n<arg_key>{{ key }}</arg_key>\n<arg_value>",
    "glm_47": "<tool_call>{{ name }}\n<arg_key>{{ key }}</arg_key><arg_value>",
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>```json",  # noqa: RUF001
    "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",  # noqa: RUF001
    "dsml": "<｜DSML｜function_calls>\n<｜DSML｜invoke",  # noqa: RUF001
    "dsml_v4": "<｜DSML｜tool_calls>\n<｜DSML｜invoke",  # noqa: RUF001
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>{{ id }}",
    "granite": "respond with <|tool_call|> followed by a JSON list of tools used",
    "hunyuan": "<tool_calls>{{ calls }}</tool_calls>",
    "nemotron": "<TOOLCALL>[{{ call }}]</TOOLCALL>",
    "command_r": '<|START_ACTION|>[{"tool_call_id": "0", "tool_name":',
    "functools": "functools[{{ call }}]",
    "lfm2": "<|tool_call_start|>[f(a=1)]<|tool_call_end|>",
    "minimax": '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">',
    "seed": "<seed:tool_call>\n<function=f>\n<parameter=a>1</parameter>",
    "function_gemma": "<start_function_call>call:{{ name }}",
    "gemma_4": "<|tool_call>call:{{ name }}",
    "harmony": "<|start|>assistant<|channel|>commentary json<|message|>",
}
GEMMA_3 = (
    "You MUST put it in the format of [func_name1(params_name1=params_value1)]",
    'You MUST put it in the format of {"name": function name, "parameters": dictionary of '
    "argument name and its value}",
)
"""The prompt of Gemma 3's documentation."""


def test_templates_show_it_and_a_tokenizer_shows_the_rest(
    vocabularies: dict[str, Vocabulary],
) -> None:
    special, spelled = vocabularies["special"], vocabularies["spelled"]
    for name, template in (*TEMPLATES.items(), *(("llama3", prompt) for prompt in GEMMA_3)):
        found = find_tool_format(SHOWN + template, spelled.text)
        assert found is not None and found.name == name
    for vocabulary in vocabularies.values():
        for template in (None, "{{ messages[0].content }}"):
            assert find_tool_format(template, vocabulary.text) is None
    assert find_tool_format(SHOWN, spelled.text) is None
    found = find_tool_format(SHOWN, special.text)
    assert found is not None and found.name == "mistral"
    markers = special.encode("<tool_call></tool_call>")
    shown = FORMATS["hermes"].shown_token_ids
    assert shown(special.text) == frozenset(markers), "only special ones"
    assert shown(vocabularies["added"].text) == shown(spelled.text) == frozenset()


INTEGER = {"type": "integer"}
ROOT = {
    "$defs": {"Count": INTEGER, "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, INTEGER]}},
    "properties": {"a/b": {"type": "boolean"}},
}

CASES: list[tuple[Any, str, Any]] = [
    (INTEGER, "3", 3),
    (INTEGER, " -3\n", -3),
    (INTEGER, "3.0", 3),
    (INTEGER, "3.5", "3.5"),
    (INTEGER, "007", "007"),
    (INTEGER, "9" * 500, "9" * 500),
    ({"type": "number"}, "2.50", 2.5),
    ({"type": "number"}, "1e3", 1000.0),
    ({"type": "number"}, "NaN", "NaN"),
    ({"type": "boolean"}, "True", True),
    ({"type": "boolean"}, "yes", "yes"),
    ({"type": "null"}, "None", None),
    ({"type": "string"}, "3", "3"),
    ({"type": "string"}, " null ", " null "),
    ({"type": ["string", "null"]}, "null", None),
    ({"type": ["string", "integer"]}, "3", 3),
    ({"type": ["integer", "null"]}, "x", "x"),
    ({"type": "string", "nullable": True}, "null", None),
    ({"anyOf": [INTEGER, {"type": "null"}]}, "null", None),
    ({"oneOf": [{"type": "boolean"}, {"type": "string"}]}, "false", False),
    ({"allOf": [{"$ref": "#/$defs/Count"}], "description": "how many"}, "3", 3),
    ({"type": "array", "items": INTEGER}, "[1, 2]", [1, 2]),
    ({"items": INTEGER}, "[1, 2]", [1, 2]),
    ({"type": "array"}, "('a', None)", "('a', None)"),
    ({"type": "array"}, "1, 2", "1, 2"),
    ({"type": "object"}, '{"a": 1}', {"a": 1}),
    ({"properties": {}}, "{'a': None}", {"a": None}),
    ({"type": "object"}, "[1]", "[1]"),
    ({"type": "object"}, "[" * 100_000, "[" * 100_000),
    ({"type": "object"}, '{"a": NaN}', '{"a": NaN}'),
    ({"enum": ["1", 2, None]}, "1", "1"),
    ({"enum": ["1", 2, None]}, "2", 2),
    ({"enum": ["1", 2, None]}, "null", None),
    ({"type": "string", "enum": ["a", "b"]}, "c", "c"),
    ({"const": True}, "true", True),
    ({"$ref": "#/$defs/Count"}, "3", 3),
    ({"$ref": "#/properties/a~1b"}, "true", True),
    ({"$ref": "#/nowhere"}, "3", "3"),
    ({"$ref": "https://example.org/schema"}, "3", "3"),
    ({"$ref": "#/$defs/Loop"}, "3", 3),
    ({}, "3", 3),
    (True, "text", "text"),
    (None, "3", "3"),
    ({"type": 7}, "x", "x"),
    ({"enum": 7, "anyOf": 7}, "[1]", [1]),
]


def test_a_value_follows_its_schema_and_is_text_where_only_texts_are_allowed() -> None:
    for schema, text, value in CASES:
        found = json.loads(as_json(text, schema, ROOT))
        assert (found, type(found)) == (value, type(value)), (schema, text)
    any_of = {"anyOf": [{"type": "string"}, {"const": "x"}]}
    for schema in ({"type": "string"}, {"enum": ["a"]}, any_of, None):
        assert is_text(schema, ROOT)
    nullable = {"type": "string", "nullable": True}
    for schema in ({"type": ["string", "null"]}, nullable, INTEGER, {}):
        assert not is_text(schema, ROOT)
