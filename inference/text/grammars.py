"""Grammars for llguidance: a list of parts, each lark text or a JSON schema, the first the start.

Imports no llguidance: a process that only writes grammars cannot compile one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import Enum
from typing import Any

from inference.protocol.engine import Grammar
from inference.protocol.generation import OutputFormat, ToolDefinition
from inference.text.errors import GrammarRefusedError, SchemaError
from inference.text.reasoning import ROLE, THOUGHTS, HarmonyTokens, ReasoningMarkers
from inference.text.schema_places import Schema

OUR_OPTIONS = "x-guidance"
OPTIONS = {"whitespace_pattern": r"( |\n {0,32})?"}
"""Bounds white space, because small models else write it until they are cut."""
TOO_DEEP = "the schema is nested too deeply"


def json_part(schema: Schema | None) -> dict[str, Any]:
    if schema is None:
        schema = {"type": "object"}
    elif isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    return {"json_schema": {**schema, OUR_OPTIONS: OPTIONS}}


def grammar_text(parts: Sequence[dict[str, Any]]) -> str:
    """Raises ``SchemaError`` for a schema that is nested too deeply to be written."""
    try:
        return json.dumps({"grammars": list(parts)})
    except RecursionError:
        raise SchemaError((), TOO_DEEP) from None


def text_part(output_format: OutputFormat) -> dict[str, Any]:
    """Raises ``GrammarRefusedError``."""
    if output_format.regex is not None:
        return {"lark_grammar": f"start: /{_escaped(output_format.regex)}/"}
    if output_format.choices:
        texts = " | ".join(literal(choice) for choice in dict.fromkeys(output_format.choices))
        return {"lark_grammar": f"start: {texts}"}
    assert output_format.grammar is not None, "a format that is JSON"
    return {"lark_grammar": _lark(output_format.grammar, output_format.path)}


def _escaped(regex: str) -> str:
    escaped, is_escape = [], False
    for char in regex:
        if char == "\n":
            escaped.append("n" if is_escape else r"\n")
        elif char == "/" and not is_escape:
            escaped.append(r"\/")
        else:
            escaped.append(char)
        is_escape = char == "\\" and not is_escape
    return "".join(escaped)


def literal(text: str) -> str:
    # Lark's strings are JSON's, but for the one control character that JSON lets stand.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _lark(grammar: str, path: str) -> str:
    """Only GBNF writes ``::=``. The library's converter may raise anything."""
    if "::=" not in grammar:
        return grammar
    from llguidance.gbnf_to_lark import gbnf_to_lark  # in workers alone

    try:
        return str(gbnf_to_lark(grammar))
    except Exception as error:
        message = f"the grammar cannot be read: {error}"
        raise GrammarRefusedError(message, path) from error


def bare_call_part(tool: ToolDefinition) -> dict[str, Any]:
    """One call of ``tool`` as Llama's bare JSON, beside an answer that is JSON too.

    One lexer reads both, and it would take a call's literal beginning for good where the answer
    only begins alike. As JSON schemas with the same white space they differ at the first key that
    does.
    """
    arguments: dict[str, Any] = {"type": "object"}
    if tool.strict and tool.parameters is not None:
        moved = rerooted(tool.parameters, "#/properties/parameters")
        arguments = {**moved, "type": "object"}
    return json_part(
        {
            "type": "object",
            "properties": {"name": {"const": tool.name}, "parameters": arguments},
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
    )


def rerooted(schema: Any, root: str) -> Any:
    """Makes references start at ``root``, and drops an identifier, where they would start."""
    if isinstance(schema, list):
        return [rerooted(item, root) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: root + value.removeprefix("#")
        if key == "$ref" and isinstance(value, str)
        else rerooted(value, root)
        for key, value in schema.items()
        if not (key in ("$id", "id") and isinstance(value, str))
    }


SPACE_RULE = r"SPACE: /[ \n]{1,4}/"
"""Separates a thinking block from the answer; not part of either."""


class Thinking(Enum):
    NONE = "none"
    OPENED = "opened by the prompt"
    POSSIBLE = "up to the model"


LEADS = {Thinking.NONE: "", Thinking.OPENED: "SPACE? ", Thinking.POSSIBLE: "thought? "}


def answer_grammar(
    parts: Sequence[dict[str, Any]],
    *,
    thinking: Thinking = Thinking.NONE,
    markers: ReasoningMarkers | None = None,
    end_token_ids: Sequence[int] = (),
    num_calls: int = 0,
) -> Grammar:
    """The first ``num_calls`` of ``parts`` are calls. ``end_token_ids`` are the model's, which do
    not end an answer inside its thinking. Raises ``SchemaError``."""
    channels = None if markers is None else markers.channels
    if thinking is Thinking.NONE and len(parts) == 1 and channels is None:
        return Grammar(text=grammar_text(parts))
    named = [{"name": f"part_{index}", **part} for index, part in enumerate(parts)]
    # In channels an answer has this head; calls have their own in their rules.
    head = "" if channels is None else f'<[{channels.channel}]> "final" <[{channels.message}]> '
    heads = [head if index >= num_calls else "" for index in range(len(named))]
    answer = " | ".join(f"{head}@{part['name']}" for head, part in zip(heads, named, strict=True))
    rules = [f"start: {LEADS[thinking]}({answer})"]
    if channels is not None and thinking is not Thinking.NONE:
        rules.append(_channel_rule(channels, end_token_ids))
    elif thinking is Thinking.POSSIBLE:
        rules.append(_thought_rule(markers, end_token_ids))
    if thinking is not Thinking.NONE and channels is None:
        rules.append(SPACE_RULE)
    is_open = thinking is Thinking.OPENED
    return Grammar(
        text=grammar_text([{"lark_grammar": "\n".join(rules)}, *named]),
        starts_after_token_id=markers.end_token_id if is_open and markers else None,
    )


def _thought_rule(markers: ReasoningMarkers | None, end_token_ids: Sequence[int]) -> str:
    """The rule uses token ids, so that the block may be closed in the middle of a character."""
    assert markers is not None
    bound = ",".join(map(str, [markers.end_token_id, *end_token_ids]))
    return f"thought: <[{markers.start_token_id}]> <[^{bound}]>* <[{markers.end_token_id}]> SPACE?"


def _channel_rule(channels: HarmonyTokens, end_token_ids: Sequence[int]) -> str:
    bound = ",".join(map(str, dict.fromkeys([channels.end, channels.start, *end_token_ids])))
    return (
        f'thought: <[{channels.channel}]> "{THOUGHTS}" <[{channels.message}]> <[^{bound}]>* '
        f'<[{channels.end}]> <[{channels.start}]> "{ROLE}"'
    )
