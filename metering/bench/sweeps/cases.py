"""The fixed cases of ``tools`` and ``structured``, and whether an answer is right. Pure.

They ask for little: the score counts whether calls and JSON are well formed and contain the
question's values. Changing a case makes old scores incomparable: add a scenario instead.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCase:
    prompt: str
    call: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaCase:
    name: str
    prompt: str
    schema: dict[str, Any]
    values: dict[str, Any]
    """What the answer has to hold."""


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


TEXT: dict[str, Any] = {"type": "string"}
WHOLE: dict[str, Any] = {"type": "integer"}
TEXTS: dict[str, Any] = {"type": "array", "items": TEXT}
UNITS: dict[str, Any] = {"type": "string", "enum": ["celsius", "fahrenheit"]}

TOOLS = (
    Tool(
        name="get_weather",
        description="The weather in a city now.",
        parameters=_object(city=TEXT, unit=UNITS),
    ),
    Tool(name="add", description="Adds two whole numbers.", parameters=_object(a=WHOLE, b=WHOLE)),
    Tool(
        name="send_message",
        description="Sends a text to a person.",
        parameters=_object(to=TEXT, text=TEXT),
    ),
    Tool(name="read_file", description="Reads a file.", parameters=_object(path=TEXT)),
)
TOOL_CASES = (
    ToolCase(
        prompt="What is the weather in Oslo, in celsius?",
        call="get_weather",
        arguments={"city": "Oslo", "unit": "celsius"},
    ),
    ToolCase(
        prompt="How warm is it in Boston right now, in fahrenheit?",
        call="get_weather",
        arguments={"city": "Boston", "unit": "fahrenheit"},
    ),
    ToolCase(prompt="Add 17 and 25.", call="add", arguments={"a": 17, "b": 25}),
    ToolCase(
        prompt="Use the tool to work out 1204 plus 96.", call="add", arguments={"a": 1204, "b": 96}
    ),
    ToolCase(
        prompt="Send Maria the text: dinner at eight",
        call="send_message",
        arguments={"to": "Maria", "text": "dinner at eight"},
    ),
    ToolCase(
        prompt="Read the file /etc/hostname for me.",
        call="read_file",
        arguments={"path": "/etc/hostname"},
    ),
)
SCHEMA_CASES = (
    SchemaCase(
        name="person",
        prompt="Alice Miller is 34 years old and lives in Lyon. Give her name, age and city.",
        schema=_object(name=TEXT, age=WHOLE, city=TEXT),
        values={"name": "Alice Miller", "age": 34, "city": "Lyon"},
    ),
    SchemaCase(
        name="order",
        prompt="The order says: 3 boxes of nails. Give the item and the quantity.",
        schema=_object(item=TEXT, quantity=WHOLE),
        values={"quantity": 3},
    ),
    SchemaCase(
        name="colours",
        prompt="List the colours of the French flag, in English.",
        schema=_object(colours=TEXTS),
        values={},
    ),
    SchemaCase(
        name="unit",
        prompt="The sign says 21 degrees celsius. Give the value and the unit.",
        schema=_object(value=WHOLE, unit=UNITS),
        values={"value": 21, "unit": "celsius"},
    ),
    SchemaCase(
        name="event",
        prompt="The meeting with Tom and Ana is in room 12. Give the room and who comes.",
        schema=_object(room=WHOLE, people=TEXTS),
        values={"room": 12},
    ),
)


def fault_of_calls(case: ToolCase, calls: Sequence[tuple[str, str]]) -> str:
    """The fault of the calls (name, arguments as they came); empty: none."""
    if len(calls) != 1:
        return f"{len(calls)} calls instead of one"
    name, text = calls[0]
    if name != case.call:
        return f"called {name!r} instead of {case.call!r}"
    arguments = _parsed(text)
    if not isinstance(arguments, dict):
        return "the arguments are no JSON object"
    tool = next(tool for tool in TOOLS if tool.name == name)
    return fault_of_value(arguments, tool.parameters) or _missing(arguments, case.arguments)


def fault_of_json(case: SchemaCase, text: str) -> str:
    value = _parsed(text)
    if value is None:
        return "the answer is no JSON"
    return fault_of_value(value, case.schema) or _missing(value, case.values)


def fault_of_value(value: Any, schema: dict[str, Any], at: str = "it") -> str:
    """Returns how ``value`` violates the schema, empty if it does not. Knows the part of JSON
    schema that the cases use."""
    match schema["type"]:
        case "object":
            return _fault_of_object(value, schema, at)
        case "array":
            if not isinstance(value, list):
                return f"{at} is no array"
            faults = (
                fault_of_value(one, schema["items"], f"{at}[{n}]") for n, one in enumerate(value)
            )
            return next(filter(None, faults), "")
        case "integer":
            return "" if type(value) is int else f"{at} is no whole number"
    if not isinstance(value, str):
        return f"{at} is no text"
    return "" if value in schema.get("enum", [value]) else f"{at} is none of {schema['enum']}"


def _fault_of_object(value: Any, schema: dict[str, Any], at: str) -> str:
    if not isinstance(value, dict):
        return f"{at} is no object"
    if value.keys() != set(schema["required"]):
        return f"{at} has the fields {sorted(value)}"
    faults = (
        fault_of_value(value[name], part, name) for name, part in schema["properties"].items()
    )
    return next(filter(None, faults), "")


def _missing(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    for name, value in wanted.items():
        if _plain(found.get(name)) != _plain(value):
            return f"{name} is {found.get(name)!r} instead of {value!r}"
    return ""


def _plain(value: Any) -> Any:
    return value.strip().rstrip(".").lower() if isinstance(value, str) else value


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
