"""The text of one argument, to the JSON value that the tool's schema asks for.

    "3" as an integer ─▶ 3      "3" as a string ─▶ "3"      "three" as an integer ─▶ "three"

Text that fits none of the schema's types stays a string: nothing a model wrote is dropped. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from inference.text.tool_calls.json_scanner import MAX_SCALAR_LENGTH, compact_json, read_json
from inference.text.tool_calls.python_literals import literal_value, parse_literals

_TRIED_IN_ORDER = ("null", "integer", "number", "boolean", "object", "array")
_INTEGER = re.compile(r"(-?(?:0|[1-9][0-9]*))(?:\.0+)?")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_PYTHON_TYPES: Mapping[str, type] = {"object": dict, "array": list}


def as_json(text: str, schema: object, root: Mapping[str, Any]) -> str:
    """JSON text of the value. ``root`` is where the schema's references lead."""
    options = alternatives(schema, root)
    for option in options:
        if (chosen := _listed(text, option)) is not None:
            return chosen
    types = {name for option in options for name in allowed_types(option)}
    for name in _TRIED_IN_ORDER:
        if name in types and (converted := _converted(text.strip(), name)) is not None:
            return converted
    return compact_json(text)


def is_text(schema: object, root: Mapping[str, Any]) -> bool:
    """Whether the schema allows every text, so that a value can be streamed before it is whole."""
    return all(allowed_types(option) == {"string"} for option in alternatives(schema, root))


def alternatives(schema: object, root: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The schemas of which the value fits one, without unions and references. An argument that is
    not in the tool's schema (``None``) is a string."""
    found: list[Mapping[str, Any]] = []
    waiting = [schema]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop(0)
        if not isinstance(one, dict):
            found.append({} if one is True else {"type": "string"})
        elif id(one) not in seen:
            seen.add(id(one))
            options = _options(one, root)
            waiting += options
            found += [] if options else [_merged(one, root)]
    return found


def _options(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[object]:
    """What the schema only leads to."""
    if isinstance(reference := schema.get("$ref"), str):
        return [resolve_reference(reference, root)]
    for keyword in ("anyOf", "oneOf"):
        if isinstance(options := schema.get(keyword), list):
            return options
    return []


def _merged(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """``allOf`` merged into one schema, as far as finding types needs it."""
    parts = schema.get("allOf")
    merged = {key: value for key, value in schema.items() if key != "allOf"}
    for part in parts if isinstance(parts, list) else []:
        options = _options(part, root) if isinstance(part, dict) else []
        target = options[0] if options else part
        merged |= target if isinstance(target, dict) else {}
    return merged


def resolve_reference(reference: str, root: Mapping[str, Any]) -> object:
    """``#/$defs/x``; what leads nowhere is an unknown schema, ``None``."""
    target: object = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        key = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(target, dict) or not reference.startswith("#"):
            return None
        target = target if step == "" else target.get(key)
    return target


def allowed_types(schema: Mapping[str, Any]) -> set[str]:
    """Names of the allowed JSON types. A schema without ``type`` allows all of them."""
    declared = schema.get("type")
    names = {name for name in _as_list(declared) if isinstance(name, str)}
    if not names and (listed := listed_values(schema)):
        return {_type_name(value) for value in listed}
    if not names:
        names |= {"object"} if "properties" in schema else set()
        names |= {"array"} if "items" in schema else set()
    if names and schema.get("nullable") is True:
        names.add("null")
    return names or {*_TRIED_IN_ORDER, "string"}


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def listed_values(schema: Mapping[str, Any]) -> list[Any]:
    if "const" in schema:
        return [schema["const"]]
    listed = schema.get("enum")
    return listed if isinstance(listed, list) else []


def _listed(text: str, schema: Mapping[str, Any]) -> str | None:
    """The value among ``enum`` or ``const`` that the text is, as it stands or as JSON."""
    values = listed_values(schema)
    if text in values:
        return compact_json(text)
    return next((written for value in values if (written := compact_json(value)) == text), None)


def _type_name(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case _:
            return "object" if isinstance(value, dict) else "array"


def _converted(text: str, type_name: str) -> str | None:
    """``None`` when the text is no such value."""
    match type_name:
        case "null":
            return "null" if text.lower() in ("null", "none") else None
        case "boolean":
            return text.lower() if text.lower() in ("true", "false") else None
        case "integer":
            found = _INTEGER.fullmatch(text) if len(text) <= MAX_SCALAR_LENGTH else None
            return found.group(1) if found else None
        case "number":
            found = _NUMBER.fullmatch(text) if len(text) <= MAX_SCALAR_LENGTH else None
            return text if found else None
        case _:
            return _container(text, _PYTHON_TYPES[type_name])


def _container(text: str, wanted: type) -> str | None:
    """An object or array, as JSON or as Python writes it."""
    for read in (read_json, _read_python):
        try:
            value = read(text)
            if isinstance(value, wanted):
                return compact_json(value)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            continue
    return None


def _read_python(text: str) -> object:
    return literal_value(parse_literals(text))
