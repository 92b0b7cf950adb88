"""What a Responses request may say beside its input: tools, the answer's format, what to include.

Each check returns what the parser keeps; ``as_object`` is how the response echoes it. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inference.protocol.generation import OutputFormat, ToolChoice, ToolDefinition
from inference.wire.errors import (
    InvalidRequestError,
    MissingParameterError,
    UnsupportedParameterError,
)
from inference.wire.fields import (
    Check,
    Field,
    flag,
    honoured,
    json_object,
    neutral,
    only,
    read_fields,
    refused,
    shown,
    table,
    text,
    wrong_type,
)
from inference.wire.strict_schemas import is_strict

MAX_NAME_CHARS = 128
MAX_TOOLS = 1024
LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"
INCLUDABLE = (
    LOGPROBS,
    ENCRYPTED_REASONING,
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
)
"""All but the first two ask for parts of items that no answer here has."""

_string = text()
_name = text(MAX_NAME_CHARS, min_chars=1)

TOOL_FIELDS = table(
    honoured("type", only("function", reason="only functions can be offered"), "function"),
    honoured("name", _name, "The function's name."),
    honoured("description", _string, "Told to the model."),
    honoured("parameters", json_object, "A JSON schema."),
    honoured("strict", flag, "Left out: true where the schema allows nothing but what it names."),
    neutral(
        "allowed_callers", only(["direct"], reason="only the model itself calls"), '["direct"]'
    ),
    neutral("async", only(False, reason="calls are not asynchronous"), "false"),
    neutral("defer_loading", only(False, reason="every tool is told at once"), "false"),
    refused("output_schema", "what a function returns is not checked"),
)


@dataclass(frozen=True, slots=True)
class Tool:
    definition: ToolDefinition

    def as_object(self) -> dict[str, Any]:
        return {
            "type": "function",
            "name": self.definition.name,
            "description": self.definition.description,
            "parameters": self.definition.parameters,
            "strict": self.definition.strict,
        }


def tools(value: Any, path: str) -> list[Tool]:
    if not isinstance(value, list):
        raise wrong_type(path, "an array", value)
    if len(value) > MAX_TOOLS:
        raise InvalidRequestError(
            f"'{path}' may have {MAX_TOOLS} items; it has {len(value)}.", param=path
        )
    read = [_tool(given, f"{path}[{index}]") for index, given in enumerate(value)]
    names = [tool.definition.name for tool in read]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidRequestError(
                f"Two tools have the name '{shown(name)}'.", param=f"{path}[{index}].name"
            )
    return read


def _tool(value: Any, path: str) -> Tool:
    kind = _kind(value, path)
    if kind != "function":
        raise UnsupportedParameterError(
            f"{path}.type", f"'{shown(kind)}' is not offered here, only functions are"
        )
    read = read_fields(value, TOOL_FIELDS, path=f"{path}.", required=("name",))
    parameters = read.get("parameters")
    return Tool(
        ToolDefinition(
            name=read["name"],
            path=path,
            description=read.get("description"),
            parameters=parameters,
            strict=read.get("strict", parameters is not None and is_strict(parameters)),
        )
    )


FUNCTION_CHOICE = table(
    honoured("type", only("function", reason="only functions can be chosen"), "function"),
    honoured("name", _name, "One of the tools."),
)


def tool_choice(value: Any, path: str) -> ToolChoice:
    if isinstance(value, str):
        match value:
            case "auto" | "none" | "required":
                return ToolChoice(mode=value)
        raise InvalidRequestError(
            f"'{path}' must be auto, none, required or a function.", param=path
        )
    kind = _kind(value, path)
    if kind != "function":
        raise UnsupportedParameterError(
            f"{path}.type", f"'{shown(kind)}' cannot be chosen, only functions can"
        )
    read = read_fields(value, FUNCTION_CHOICE, path=f"{path}.", required=("name",))
    return ToolChoice(mode="required", name=read["name"])


def tool_choice_object(choice: ToolChoice) -> str | dict[str, str]:
    return choice.mode if choice.name is None else {"type": "function", "name": choice.name}


def ensure_choosable(choice: ToolChoice, offered: list[Tool]) -> None:
    """Raises ``InvalidRequestError`` where a call is required that cannot be made."""
    if choice.mode == "required" and not offered:
        raise InvalidRequestError("'tool_choice' requires 'tools'.", param="tool_choice")
    if choice.name is not None and all(choice.name != tool.definition.name for tool in offered):
        raise InvalidRequestError(
            f"'tool_choice' names '{shown(choice.name)}', which is not one of 'tools'.",
            param="tool_choice.name",
        )


@dataclass(frozen=True, slots=True)
class TextSettings:
    format: dict[str, Any]
    output_format: OutputFormat | None

    def as_object(self) -> dict[str, Any]:
        return {"format": self.format, "verbosity": "medium"}


PLAIN_TEXT = TextSettings({"type": "text"}, None)

_type = honoured("type", _string, "text, json_object or json_schema.")
FORMAT_FIELDS: dict[str, dict[str, Field]] = {
    "text": table(_type),
    "json_object": table(_type),
    "json_schema": table(
        _type,
        honoured("name", _name, "Echoed."),
        honoured("schema", json_object, "The JSON schema that the text follows."),
        honoured("description", _string, "Echoed."),
        honoured("strict", flag, "The schema is enforced either way."),
    ),
}


def output_text_format(value: Any, path: str) -> TextSettings:
    kind = _kind(value, path)
    if kind not in FORMAT_FIELDS:
        raise UnsupportedParameterError(f"{path}.type", "text, json_object or json_schema")
    required = ("name", "schema") if kind == "json_schema" else ()
    read = read_fields(value, FORMAT_FIELDS[kind], path=f"{path}.", required=required)
    if kind == "text":
        return PLAIN_TEXT
    if kind == "json_object":
        return TextSettings({"type": kind}, OutputFormat(path=path))
    echoed = {"description": None, "strict": False, **read}
    return TextSettings(echoed, OutputFormat(path=f"{path}.schema", schema=read["schema"]))


TEXT_FIELDS = table(
    honoured("format", output_text_format, "text, json_object or json_schema."),
    neutral("verbosity", only("medium", reason="only medium, the default"), "medium"),
)


def text_settings(value: Any, path: str) -> TextSettings:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    settings: TextSettings = read_fields(value, TEXT_FIELDS, path=f"{path}.").get(
        "format", PLAIN_TEXT
    )
    return settings


def include(value: Any, path: str) -> frozenset[str]:
    if not isinstance(value, list):
        raise wrong_type(path, "an array", value)
    check: Check = only(*INCLUDABLE, reason=f"one of {', '.join(INCLUDABLE)}")
    return frozenset(check(name, f"{path}[{index}]") for index, name in enumerate(value))


STREAM_OPTIONS = table(
    neutral(
        "include_obfuscation",
        only(False, reason="events are never padded; only false is accepted"),
        "false",
    ),
)


def stream_options(value: Any, path: str) -> None:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    read_fields(value, STREAM_OPTIONS, path=f"{path}.")


def _kind(value: Any, path: str) -> str:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    if value.get("type") is None:
        raise MissingParameterError(f"{path}.type")
    kind: str = _string(value["type"], f"{path}.type")
    return kind
