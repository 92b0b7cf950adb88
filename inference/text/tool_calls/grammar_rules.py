"""What the formats' grammars have in common: llguidance lark rules, as lines of text.

    required    start: call (between call)*    call: marker rest      once: start: call
    auto        start: call* TEXT              call: head rest        once: start: TEXT | call

``head`` is free text that ends in the marker, as one token or spelled out. ``rest`` is the
format's. Syntax: llguidance's docs/syntax.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.grammars.parts import OPTIONS, OUR_OPTIONS
from inference.text.tokens.tokenizer import Tokenizer

TEXT_TERMINAL = r"TEXT: /(.|\n)*/"


def callable_tools(
    tools: Sequence[ToolDefinition], choice: ToolChoice, *, parallel: bool
) -> Sequence[ToolDefinition]:
    """The tools that the answer may call. Empty where nothing is to be enforced."""
    if choice.mode == "none":
        return ()
    if choice.mode == "required":
        named = [tool for tool in tools if choice.name in (None, tool.name)]
        assert named, "a call is required of a tool that is not there"
        return named
    return tools if not parallel or any(tool.strict for tool in tools) else ()


def literal(text: str) -> str:
    # Lark's strings are JSON's, but for the one control character that JSON lets stand.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def marker(tokenizer: Tokenizer, text: str) -> str:
    token_id = marker_token_id(tokenizer, text)
    return literal(text) if token_id is None else f"<[{token_id}]>"


def answer_rules(
    opening: str,
    choice: ToolChoice,
    *,
    parallel: bool,
    tokenizer: Tokenizer,
    between: str,
    also: str = "",
) -> list[str]:
    """Rules for the whole answer but ``rest``, which is what follows the marker ``opening`` of one
    call. ``between`` are the format's characters between two calls; ``also`` is another way in
    which a call may begin in free text."""
    if choice.mode == "required":
        more = f" ({literal(between)} call)*" if between else " call*"
        return [
            f"start: call{more if parallel else ''}",
            f"call: {marker(tokenizer, opening)} rest",
            TEXT_TERMINAL,
        ]
    return [
        "start: call* TEXT" if parallel else "start: TEXT | call",
        f"call: head rest{f' | {also}' if also else ''}",
        *head_rules("head", opening, tokenizer),
        TEXT_TERMINAL,
    ]


def head_rules(name: str, opening: str, tokenizer: Tokenizer) -> list[str]:
    """Free text up to the first marker. A lazy terminal ends the text that could continue."""
    token_id = marker_token_id(tokenizer, opening)
    spelled = f"{name}_spelled[lazy]: TEXT {literal(opening)}"
    if token_id is None:
        return [f"{name}: {name}_spelled", spelled]
    return [f"{name}: TEXT <[{token_id}]> | {name}_spelled", spelled]


def any_of(rule: str, count: int) -> str:
    """Any of the rules ``rule_0``, ``rule_1``, …, of which there are ``count``."""
    return " | ".join(f"{rule}_{index}" for index in range(count))


def json_rule(name: str, schema: dict[str, Any]) -> str:
    return f"{name}: %json {json.dumps(schema)}"


def arguments_schema(tool: ToolDefinition, choice: ToolChoice) -> dict[str, Any]:
    """The schema of the arguments object: the tool's own for a strict tool, and where a call is
    forced, which a model may not have in mind; any object for other calls."""
    if not tool.strict and choice.mode != "required":
        return {"type": "object", OUR_OPTIONS: OPTIONS}
    schema = tool.parameters
    if schema is None:
        schema = {"properties": {}, "additionalProperties": False}
    return {**schema, "type": "object", OUR_OPTIONS: OPTIONS}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallKeys:
    """How a format names the members of a call that is a JSON object."""

    name: str = "name"
    arguments: str = "arguments"
    id: str | None = None
    """Before the name, where the model counts its calls."""


def json_call_rules(
    tools: Sequence[ToolDefinition], choice: ToolChoice, keys: CallKeys
) -> list[str]:
    """``object`` is one call, ``{"name": …, "arguments": …}``, of any of the tools."""
    rules = [f"object: {any_of('object', len(tools))}"]
    # One literal where it can be: behind free text, a shorter one would be the text's.
    counted = f'{{"{keys.id}": "'
    begin, number = ("{", "") if keys.id is None else ('", ', f"{literal(counted)} /[0-9]{{1,3}}/ ")
    for index, tool in enumerate(tools):
        name = json.dumps(tool.name, ensure_ascii=False)
        head = literal(f'{begin}"{keys.name}": {name}, "{keys.arguments}": ')
        rules.append(f'object_{index}: {number}{head} arguments_{index} "}}"')
        rules.append(json_rule(f"arguments_{index}", arguments_schema(tool, choice)))
    return rules


Pair = tuple[str, str]
"""An opening and a closing marker."""


def section_grammar(
    tools: Sequence[ToolDefinition],
    choice: ToolChoice,
    *,
    parallel: bool,
    tokenizer: Tokenizer,
    section: Pair,
    call: Pair,
    head: Callable[[ToolDefinition], str],
    tail: str = "",
    between: str = "",
) -> str | None:
    """The grammar of a format that writes calls in a section, each with its name in a head.

        <section> <call> head {arguments} tail </call> <call> … </call> </section>

    ``head`` and ``tail`` are rules around one call's arguments, ``between`` the format's characters
    between two calls.
    """
    called = callable_tools(tools, choice, parallel=parallel)
    if not called:
        return None
    # What one section holds is all that the answer calls.
    many = parallel and choice.mode != "required"
    opens, ends = (marker(tokenizer, text) for text in call)
    more = f" ({literal(between) + ' ' if between else ''}one)*" if parallel else ""
    rules = [
        *answer_rules(section[0], choice, parallel=many, tokenizer=tokenizer, between=""),
        f"rest: one{more} {marker(tokenizer, section[1])}",
        f"one: {opens} ({any_of('one', len(called))}) {ends}",
    ]
    for index, tool in enumerate(called):
        rules.append(f"one_{index}: {head(tool)} arguments_{index} {tail}".rstrip())
        rules.append(json_rule(f"arguments_{index}", arguments_schema(tool, choice)))
    return "\n".join(rules)


def marker_token_id(tokenizer: Tokenizer, marker: str) -> int | None:
    """The one token that is this marker; ``None`` where it is spelled out."""
    token_ids = tokenizer.encode(marker, add_special_tokens=False)
    if len(token_ids) != 1 or tokenizer.bytes_of(token_ids[0]) != marker.encode():
        return None
    return token_ids[0]


def special_marker_ids(tokenizer: Tokenizer, markers: Iterable[str]) -> frozenset[int]:
    """The ids of markers that are special tokens, whose text is left out unless it is asked for."""
    token_ids = (marker_token_id(tokenizer, marker) for marker in markers)
    return frozenset(token_id for token_id in token_ids if token_id in tokenizer.special_token_ids)
