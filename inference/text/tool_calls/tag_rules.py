"""Grammar rules of formats that write arguments as tags with plain text between them.

Arguments come in the order of the schema's properties, the optional ones or not. Text values are
free up to their closing tag; all others are JSON after their own schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.errors import UnsupportedSchemaError
from inference.text.grammars.parts import OUR_OPTIONS, rerooted
from inference.text.tool_calls.argument_values import (
    allowed_types,
    alternatives,
    is_text,
    listed_values,
)
from inference.text.tool_calls.grammar_rules import arguments_schema, json_rule, literal
from inference.text.tool_calls.json_text import compact_json
from inference.text.tool_calls.tagged_call import fits_tag

TEXT_KEYWORDS = ("pattern", "format", "minLength", "maxLength")
"""Constraints on strings: a value written as plain text cannot be held to them."""
ROOT_KEYWORDS = {
    *("type", "properties", "required", "additionalProperties", "$defs", "definitions"),
    *("$schema", "$id", "$comment", "title", "description", "default", "examples"),
}
"""Keywords that are supported at the top of a tool's schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TagStyle:
    """How a format writes tags, as pieces of rules."""

    begin: Callable[[str], str]
    """A call's beginning, given the tool's name."""
    end: str
    key: Callable[[str], str]
    """What stands before a value, given the argument's name."""
    any_key: str
    value_end: str
    """Behind a value that is not free text."""
    text_value: Sequence[str]
    """Rules of ``text_value``: free text with what ends it."""
    before_text: str = ""
    before_json: str = ""
    """The mark between key and value, in formats that mark text and JSON."""
    fits: Callable[[str], bool] = fits_tag
    """Whether a name or key comes through its tag as it is."""

    def common_rules(self) -> list[str]:
        return [*self.text_value, f"any_argument: {self.any_key} text_value"]


def function_rules(
    rule: str, tool: ToolDefinition, choice: ToolChoice, style: TagStyle
) -> list[str]:
    """Raises ``UnsupportedSchemaError`` for what tags cannot express."""
    begin, end = style.begin(tool.name), style.end
    declared = declared_arguments(tool, choice, style.fits)
    if declared is None:
        return [f"{rule}: {begin} any_argument* {end}"]
    arguments, values = [], []
    for number, (key, schema) in enumerate(declared.properties.items()):
        argument = f"{style.key(key)} {rule}_{number}"
        arguments.append(argument if key in declared.required else f"({argument})?")
        _check_text(tool, key, alternatives(schema, declared.root))
        values.append(_value_rule(f"{rule}_{number}", schema, declared.root, style))
    return [f"{rule}: {' '.join([begin, *arguments, end])}", *values]


@dataclass(frozen=True, slots=True)
class DeclaredArguments:
    root: Mapping[str, Any]
    """The schema of all arguments."""
    properties: Mapping[str, Any]
    """The arguments' own schemas."""
    required: Sequence[str]


def declared_arguments(
    tool: ToolDefinition, choice: ToolChoice, fits: Callable[[str], bool]
) -> DeclaredArguments | None:
    """The arguments that a call is held to; ``None``: any. Keys that do not ``fits`` the format are
    left out, or refused of a strict tool. Raises ``UnsupportedSchemaError``."""
    if not tool.strict and choice.mode != "required":
        return None
    root = arguments_schema(tool, choice)
    if unknown := sorted(root.keys() - ROOT_KEYWORDS - {OUR_OPTIONS}):
        raise _unsupported(tool, (unknown[0],))
    required, declared = root.get("required", []), root.get("properties", {})
    is_list = isinstance(required, list) and all(isinstance(key, str) for key in required)
    if not is_list or not isinstance(declared, dict):
        raise UnsupportedSchemaError(tool, (), "required is a list and properties an object")
    properties = dict.fromkeys(required, True) | declared
    if tool.strict and (unfit := [key for key in properties if not fits(key)]):
        raise _unsupported(tool, ("properties", unfit[0]))
    kept = {key: one for key, one in properties.items() if one is not False and fits(key)}
    return DeclaredArguments(root, kept, required)


def _check_text(tool: ToolDefinition, key: str, options: Sequence[Mapping[str, Any]]) -> None:
    texts = [option for option in options if "string" in allowed_types(option)]
    for keyword in TEXT_KEYWORDS:
        if any(keyword in option and not listed_values(option) for option in texts):
            raise _unsupported(tool, ("properties", key, keyword))


def _value_rule(rule: str, schema: Any, root: Mapping[str, Any], style: TagStyle) -> str:
    options = alternatives(schema, root)
    if all(listed_values(option) for option in options):
        listed = [value for option in options for value in listed_values(option)]
        return f"{rule}: ({_listed_rule(listed, style)}) {style.value_end}"
    may_be_text = any("string" in allowed_types(option) for option in options)
    as_text = f"{style.before_text} text_value".strip()
    # Without a mark or a schema that makes a value text, digits may be a number.
    if may_be_text and (is_text(schema, root) or not style.before_json):
        return f"{rule}: {as_text}"
    value = value_schema(schema, root)
    as_value = f"{style.before_json} {rule}_json {style.value_end}".strip()
    either = f"{as_text} | {as_value}" if may_be_text else as_value
    return f"{rule}: {either}\n{json_rule(f'{rule}_json', value)}"


def value_schema(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """One argument's schema with the tool's whole schema, at which its references start."""
    whole = {key: value for key, value in root.items() if key != OUR_OPTIONS}
    return {
        **rerooted(schema, "#/$defs/tool"),
        "$defs": {"tool": rerooted(whole, "#/$defs/tool")},
        OUR_OPTIONS: root[OUR_OPTIONS],
    }


def _listed_rule(listed: Sequence[Any], style: TagStyle) -> str:
    texts = [literal(value) for value in listed if isinstance(value, str)]
    others = [literal(compact_json(value)) for value in listed if not isinstance(value, str)]
    groups = ((style.before_text, texts), (style.before_json, others))
    return " | ".join(f"{before} ({' | '.join(some)})".strip() for before, some in groups if some)


def _unsupported(tool: ToolDefinition, steps: tuple[str, ...]) -> UnsupportedSchemaError:
    message = f"this model writes arguments as plain text, which cannot be held to {steps[-1]!r}"
    return UnsupportedSchemaError(tool, steps, message)
