"""What a Responses request may say beside its input: tools, the answer's format, what to include.

Each check returns what the parser keeps; ``as_object`` is how the response echoes it. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

from inference.protocol.generation import OutputFormat, ToolChoice, ToolDefinition
from inference.wire.errors import (
    InvalidRequestError,
    MissingParameterError,
    UnsupportedParameterError,
)
from inference.wire.fields import (
    Field,
    array,
    flag,
    honoured,
    json_schema,
    neutral,
    object_of,
    one_of,
    only,
    read_fields,
    refused,
    shown,
    table,
    text,
    wrong_type,
)
from inference.wire.openai_tools import FREELY, Choosing, tool_name
from inference.wire.strict_schemas import is_strict

MAX_FORMAT_NAME_CHARS = 128
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

TOOL_FIELDS = table(
    honoured("type", one_of("function"), "function"),
    honoured("name", tool_name, "What the model calls it."),
    honoured("description", _string, "Handed to the chat template."),
    honoured("parameters", json_schema, "A JSON schema of the arguments."),
    honoured("strict", flag, "Left out: true where the schema is as narrow as strict ones are."),
    neutral(
        "allowed_callers", only(["direct"], reason="only the model itself calls"), '["direct"]'
    ),
    neutral("async", only(False, reason="calls are not asynchronous"), "false"),
    neutral("defer_loading", only(False, reason="every tool is told at once"), "false"),
    refused("output_schema", "what a function returns is not checked"),
)
_function = object_of(TOOL_FIELDS, required=("type", "name"))


def tools(value: Any, path: str) -> list[ToolDefinition]:
    read: list[ToolDefinition] = array(_tool)(value, path)
    names: set[str] = set()
    for definition in read:
        if definition.name in names:
            raise InvalidRequestError(
                f"'{path}' has two functions named '{definition.name}'.",
                param=f"{definition.path}.name",
            )
        names.add(definition.name)
    return read


def _tool(value: Any, path: str) -> ToolDefinition:
    kind = _kind(value, path)
    if kind != "function":
        raise UnsupportedParameterError(
            f"{path}.type", f"'{shown(kind)}' is not offered here, only functions are"
        )
    read = _function(value, path)
    parameters = read.get("parameters")
    return ToolDefinition(
        name=read["name"],
        path=path,
        description=read.get("description"),
        parameters=parameters,
        strict=read.get("strict", parameters is not None and is_strict(parameters)),
    )


def tool_object(tool: ToolDefinition) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }


NAMED_FIELDS = table(
    honoured("type", only("function", reason="only functions can be chosen"), "function"),
    honoured("name", _string, "Its name."),
)
_named_function = object_of(NAMED_FIELDS, required=("type", "name"))
ALLOWED_TOOLS_FIELDS = table(
    honoured("type", one_of("allowed_tools"), "allowed_tools"),
    honoured("mode", one_of("auto", "required"), "auto or required."),
    honoured("tools", array(_named_function, min_items=1), "Which functions."),
)
_allowed_tools = object_of(ALLOWED_TOOLS_FIELDS, required=("mode", "tools"))


@dataclass(frozen=True, slots=True)
class GivenChoice:
    """``as_object`` is what the client said."""

    choosing: Choosing
    as_object: Any


CHOOSE_FREELY = GivenChoice(FREELY, "auto")


def tool_choice(value: Any, path: str) -> GivenChoice:
    if isinstance(value, str):
        mode = one_of("auto", "none", "required")(value, path)
        choice = ToolChoice(mode=cast(Literal["auto", "none", "required"], mode))
        return GivenChoice(Choosing(choice), value)
    kind = _kind(value, path)
    if kind == "allowed_tools":
        read = _allowed_tools(value, path)
        names = [tool["name"] for tool in read["tools"]]
        return GivenChoice(Choosing(ToolChoice(mode=read["mode"]), names), value)
    if kind != "function":
        raise UnsupportedParameterError(
            f"{path}.type", f"'{shown(kind)}' cannot be chosen, only functions can"
        )
    named = ToolChoice(mode="required", name=_named_function(value, path)["name"])
    return GivenChoice(Choosing(named), value)


@dataclass(frozen=True, slots=True)
class TextSettings:
    format: dict[str, Any]
    output_format: OutputFormat | None

    def as_object(self) -> dict[str, Any]:
        return {"format": self.format, "verbosity": "medium"}


PLAIN_TEXT = TextSettings({"type": "text"}, None)

_format_type = honoured("type", _string, "text, json_object or json_schema.")
FORMAT_FIELDS: dict[str, dict[str, Field]] = {
    "text": table(_format_type),
    "json_object": table(_format_type),
    "json_schema": table(
        _format_type,
        neutral("name", text(MAX_FORMAT_NAME_CHARS, min_chars=1), "A label; echoed."),
        honoured("schema", json_schema, "A JSON schema."),
        neutral("description", _string, "A note; the schema itself is enforced."),
        neutral("strict", flag, "The schema is followed exactly either way."),
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
_text_fields = object_of(TEXT_FIELDS)


def text_settings(value: Any, path: str) -> TextSettings:
    settings: TextSettings = _text_fields(value, path).get("format", PLAIN_TEXT)
    return settings


_includable = one_of(*INCLUDABLE)


def include(value: Any, path: str) -> list[str]:
    """Without what it names twice."""
    return list(dict.fromkeys(array(_includable)(value, path)))


STREAM_OPTIONS = table(
    neutral(
        "include_obfuscation",
        only(False, reason="events are never padded; only false is accepted"),
        "false",
    ),
)
stream_options = object_of(STREAM_OPTIONS)


def _kind(value: Any, path: str) -> str:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    if value.get("type") is None:
        raise MissingParameterError(f"{path}.type")
    kind: str = _string(value["type"], f"{path}.type")
    return kind
