"""The tool-call format of a model, inferred from its template; and text to the value that a schema
asks for."""

from __future__ import annotations

import json
from typing import Any

from inference.text.tool_calls import FORMATS, find_tool_format
from inference.text.tool_calls.argument_values import as_json, is_text
from tests.inference.text.tool_calls.conftest import Vocabulary

TOOLS = "{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
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
        found = find_tool_format(TOOLS + template, spelled.text)
        assert found is not None and found.name == name
    for vocabulary in vocabularies.values():
        for template in (None, "{{ messages[0].content }}"):
            assert find_tool_format(template, vocabulary.text) is None
    assert find_tool_format(TOOLS, spelled.text) is None
    found = find_tool_format(TOOLS, special.text)
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
