"""Rules that the formats' grammars share: llguidance lark rules (its docs/syntax.md).

    required    start: call (between call)*    call: marker rest      once: start: call
    auto        start: call* TEXT              call: head rest        once: start: TEXT | call

``head`` is free text that ends in the marker. ``rest`` is the format's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.errors import UnsupportedSchemaError
from inference.text.grammars import OPTIONS, OUR_OPTIONS, literal, rerooted

TEXT_TERMINAL = r"TEXT: /(.|\n)*/"


def callable_tools(
    tools: Sequence[ToolDefinition], choice: ToolChoice, *, parallel: bool
) -> Sequence[ToolDefinition]:
    """Empty where nothing is to be enforced."""
    if choice.mode == "none":
        return ()
    if choice.mode == "required":
        named = [tool for tool in tools if choice.name in (None, tool.name)]
        assert named, "a call is required of a tool that is not there"
        return named
    return tools if not parallel or any(tool.strict for tool in tools) else ()


@dataclass(frozen=True, slots=True)
class WantedCalls:
    tools: Sequence[ToolDefinition]
    choice: ToolChoice
    parallel: bool
    marker_ids: Mapping[str, int]
    """Markers that are one token."""

    @property
    def are_forced(self) -> bool:
        return self.choice.mode == "required"

    def marker(self, text: str) -> str:
        """Writes markers within ``text`` as the tokenizer has them."""
        pieces = re.split(f"({'|'.join(map(re.escape, self.marker_ids)) or '(?!)'})", text)
        ids = self.marker_ids
        return " ".join(f"<[{ids[one]}]>" if one in ids else literal(one) for one in pieces if one)

    def around_token(self, text: str) -> tuple[str, str, str]:
        """Splits into the text before the token, the token, and a rule for the text behind it."""
        for marker, token_id in self.marker_ids.items():
            before, found, after = text.partition(marker)
            if found:
                return before, f"<[{token_id}]>", literal(after) if after else ""
        return text, "", ""

    def more(self, rule: str, between: str) -> str:
        repeated = f"{literal(between)} {rule}" if between else rule
        return f" ({repeated})*" if self.parallel else ""

    def arguments_rule(self, index: int) -> str:
        return json_rule(f"arguments_{index}", arguments_schema(self.tools[index], self.choice))

    def answer_rules(
        self, opening: str, *, between: str = "", also: str = "", is_section: bool = False
    ) -> list[str]:
        """``rest`` follows the marker ``opening``. ``between``: characters between two calls;
        ``also``: another beginning of a call in free text. ``is_section``: ``rest`` holds all calls
        of a forced answer."""
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
            *head_rules("head", opening, self),
            TEXT_TERMINAL,
        ]


def head_rules(name: str, opening: str, wanted: WantedCalls) -> list[str]:
    """A lazy terminal ends text that could continue, but contains no special token."""
    spelled = f"{name}_spelled[lazy]: TEXT {literal(opening)}"
    before, token, after = wanted.around_token(opening)
    if not token:
        return [f"{name}: {name}_spelled", spelled]
    if not before:
        return [f"{name}: TEXT {token} {after} | {name}_spelled", spelled]
    ended = before.replace("/", "\\/")
    return [
        f"{name}: {name.upper()}_TEXT {token} {after} | {name}_spelled",
        f"{name.upper()}_TEXT: /(.|\\n)*{ended}/",
        spelled,
    ]


def any_of(rule: str, count: int) -> str:
    return " | ".join(f"{rule}_{index}" for index in range(count))


def in_order(rule: str, members: Sequence[tuple[str, bool]], comma: str) -> list[str]:
    """``rule_first_0``: members in order, those that are not required or not.

    first: member more | the next first       more: comma member more | the next more
    """
    rules = []
    for number, (member, is_required) in enumerate(members):
        first, more = f"{rule}_first_{number + 1}", f"{rule}_more_{number + 1}"
        or_first, or_more = ("", "") if is_required else (f" | {first}", f" | {more}")
        rules.append(f"{rule}_first_{number}: {member} {more}{or_first}")
        rules.append(f"{rule}_more_{number}: {comma} {member} {more}{or_more}")
    return [*rules, f'{rule}_first_{len(members)}: ""', f'{rule}_more_{len(members)}: ""']


def json_rule(name: str, schema: dict[str, Any]) -> str:
    return f"{name}: %json {json.dumps(schema)}"


def arguments_schema(tool: ToolDefinition, choice: ToolChoice) -> dict[str, Any]:
    """A forced call follows the tool's schema, too: the model may not have it in mind."""
    if not tool.strict and choice.mode != "required":
        return {"type": "object", OUR_OPTIONS: OPTIONS}
    schema = tool.parameters
    if schema is None:
        schema = {"properties": {}, "additionalProperties": False}
    return {**schema, "type": "object", OUR_OPTIONS: OPTIONS}


class CallKeys(NamedTuple):
    name: str = "name"
    arguments: str = "arguments"
    id: str | None = None
    """Stands before the name, where the model counts its calls."""


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


ROOT_KEYWORDS = {
    *("type", "properties", "required", "additionalProperties", "$defs", "definitions"),
    *("$schema", "$id", "$comment", "title", "description", "default", "examples"),
}


def members_of(
    tool: ToolDefinition, schema: Mapping[str, Any]
) -> tuple[dict[str, Any], Sequence[str]]:
    """The properties, those that are only required among them, and the required ones. Raises
    ``UnsupportedSchemaError``."""
    required, declared = schema.get("required", []), schema.get("properties", {})
    is_list = isinstance(required, list) and all(isinstance(key, str) for key in required)
    if not is_list or not isinstance(declared, dict):
        raise UnsupportedSchemaError(tool, (), "required is a list and properties an object")
    return dict.fromkeys(required, True) | declared, required


class DeclaredArguments(NamedTuple):
    root: Mapping[str, Any]
    properties: Mapping[str, Any]
    required: Sequence[str]


def declared_arguments(
    tool: ToolDefinition, choice: ToolChoice, fits: Callable[[str], bool]
) -> DeclaredArguments | None:
    """``None``: any arguments. Keys that do not ``fits`` the format are left out, or refused of a
    strict tool. Raises ``UnsupportedSchemaError``."""
    if not tool.strict and choice.mode != "required":
        return None
    root = arguments_schema(tool, choice)
    if unknown := sorted(root.keys() - ROOT_KEYWORDS - {OUR_OPTIONS}):
        raise unsupported(tool, (unknown[0],))
    properties, required = members_of(tool, root)
    if tool.strict and (unfit := [key for key in properties if not fits(key)]):
        raise unsupported(tool, ("properties", unfit[0]))
    kept = {key: one for key, one in properties.items() if one is not False and fits(key)}
    return DeclaredArguments(root, kept, required)


def value_schema(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """Adds the tool's whole schema, at which references start."""
    whole = {key: value for key, value in root.items() if key != OUR_OPTIONS}
    return {
        **rerooted(schema, "#/$defs/tool"),
        "$defs": {"tool": rerooted(whole, "#/$defs/tool")},
        OUR_OPTIONS: root[OUR_OPTIONS],
    }


def unsupported(tool: ToolDefinition, steps: tuple[str, ...]) -> UnsupportedSchemaError:
    message = f"this model writes arguments as plain text, which cannot be held to {steps[-1]!r}"
    return UnsupportedSchemaError(tool, steps, message)
