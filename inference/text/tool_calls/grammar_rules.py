"""What the formats' grammars have in common: llguidance lark rules, as lines of text.

    required    start: call (between call)*    call: marker rest      once: start: call
    auto        start: call* TEXT              call: head rest        once: start: TEXT | call

``head`` is free text that ends in the marker, as one token or spelled out. ``rest`` is the
format's. Syntax: llguidance's docs/syntax.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
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


@dataclass(frozen=True, slots=True)
class WantedCalls:
    """What a grammar has to hold an answer to."""

    tools: Sequence[ToolDefinition]
    """Those that may be called."""
    choice: ToolChoice
    parallel: bool
    tokenizer: Tokenizer

    @property
    def are_forced(self) -> bool:
        return self.choice.mode == "required"

    def marker(self, text: str) -> str:
        return marker(self.tokenizer, text)

    def more(self, rule: str, between: str) -> str:
        """More of ``rule``, where several calls are allowed."""
        repeated = f"{literal(between)} {rule}" if between else rule
        return f" ({repeated})*" if self.parallel else ""

    def arguments_rule(self, index: int) -> str:
        return json_rule(f"arguments_{index}", arguments_schema(self.tools[index], self.choice))

    def answer_rules(
        self, opening: str, *, between: str = "", also: str = "", is_section: bool = False
    ) -> list[str]:
        """Rules for the whole answer but ``rest``, which is what follows the marker ``opening`` of
        one call. ``between`` are the format's characters between two calls; ``also`` is another way
        in which a call may begin in free text. ``is_section``: ``rest`` holds several calls, and
        all that a forced answer calls."""
        if self.are_forced:
            more = f" ({literal(between)} call)*" if between else " call*"
            return [
                f"start: call{more if self.parallel and not is_section else ''}",
                f"call: {self.marker(opening)} rest",
                TEXT_TERMINAL,
            ]
        return [
            "start: call* TEXT" if self.parallel else "start: TEXT | call",
            f"call: head rest{f' | {also}' if also else ''}",
            *head_rules("head", opening, self.tokenizer),
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


def json_call_rules(wanted: WantedCalls, keys: CallKeys) -> list[str]:
    """``object`` is one call, ``{"name": …, "arguments": …}``, of any of the tools."""
    rules = [f"object: {any_of('object', len(wanted.tools))}"]
    # One literal where it can be: behind free text, a shorter one would be the text's.
    counted = f'{{"{keys.id}": "'
    begin, number = ("{", "") if keys.id is None else ('", ', f"{literal(counted)} /[0-9]{{1,3}}/ ")
    for index, tool in enumerate(wanted.tools):
        name = json.dumps(tool.name, ensure_ascii=False)
        head = literal(f'{begin}"{keys.name}": {name}, "{keys.arguments}": ')
        rules.append(f'object_{index}: {number}{head} arguments_{index} "}}"')
        rules.append(wanted.arguments_rule(index))
    return rules


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
