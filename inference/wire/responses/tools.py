"""Tools of a Responses request: functions, and namespaces of functions.

Codex offers MCP servers' tools as namespaces, which chat templates lack: the model sees
``crm.look_up`` for ``look_up`` of namespace ``crm``. A tool without ``strict`` is strict where its
schema fits, by OpenAI's rule.
Source: https://platform.openai.com/docs/guides/function-calling#defining-namespaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.wire import fields as f
from inference.wire.errors import UnsupportedParameterError
from inference.wire.openai.chat_turns import Choosing, any_tool, refuse_doubles, tool_name

_string = f.text()

TOOL_FIELDS = f.table(
    f.required("type", f.one_of("function"), "function"),
    f.required("name", tool_name, "What the model calls it."),
    f.honoured("description", _string, "Handed to the chat template."),
    f.honoured("parameters", f.json_schema, "A JSON schema of the arguments."),
    f.honoured(
        "strict", f.flag, "Left out: true where the schema is as narrow as strict ones are."
    ),
    f.fixed("allowed_callers", ["direct"], "only the model itself calls"),
    f.fixed("async", False, "calls are not asynchronous"),
    f.fixed("defer_loading", False, "every tool is in the prompt at once"),
    f.refused("output_schema", "what a function returns is not checked"),
)


@dataclass(frozen=True, slots=True)
class Namespace:
    name: str
    path: str
    description: str | None
    functions: list[ToolDefinition]


@dataclass(frozen=True, slots=True)
class Member:
    """The names of a call of a namespace's function."""

    namespace: str
    name: str
    namespace_description: str | None


@dataclass(frozen=True, slots=True)
class GivenTools:
    """``functions`` have their names in the prompt: the keys of ``members`` for namespaces'."""

    functions: list[ToolDefinition] = field(default_factory=list)
    members: Mapping[str, Member] = field(default_factory=dict)
    as_objects: list[dict[str, Any]] = field(default_factory=list)

    def described(self, offered: Iterable[ToolDefinition]) -> list[ToolDefinition]:
        described: set[str] = set()
        return [self._described(tool, described) for tool in offered]

    def _described(self, tool: ToolDefinition, described: set[str]) -> ToolDefinition:
        member = self.members.get(tool.name)
        if member is None or not member.namespace_description or member.namespace in described:
            return tool
        described.add(member.namespace)
        about = f"All of {member.namespace}: {member.namespace_description}"
        description = f"{tool.description}\n\n{about}" if tool.description else about
        return msgspec.structs.replace(tool, description=description)


NO_TOOLS = GivenTools()


def shown_name(name: str, namespace: str | None) -> str:
    return name if namespace is None else f"{namespace}.{name}"


def tools(value: Any, path: str) -> GivenTools:
    read: list[ToolDefinition | Namespace] = f.array(_tool)(value, path)
    functions: list[ToolDefinition] = []
    members: dict[str, Member] = {}
    for tool in read:
        if isinstance(tool, ToolDefinition):
            functions.append(tool)
            continue
        for function in tool.functions:
            name = shown_name(function.name, tool.name)
            functions.append(msgspec.structs.replace(function, name=name))
            members[name] = Member(tool.name, function.name, tool.description)
    namespaces = [tool for tool in read if isinstance(tool, Namespace)]
    refuse_doubles(_places(namespaces), "namespaces", path)
    refuse_doubles(_places(functions), "functions", path)
    return GivenTools(functions, members, [_tool_object(tool) for tool in read])


def _places(tools: Iterable[ToolDefinition | Namespace]) -> Iterable[tuple[str, str]]:
    return ((tool.name, f"{tool.path}.name") for tool in tools)


def _tool(value: Any, path: str) -> ToolDefinition | Namespace:
    if f.kind_of(value, path) != "namespace":
        return _function_tool(value, path)
    read = NAMESPACE_FIELDS.read(value, path)
    return Namespace(read["name"], path, read.get("description"), read["tools"])


def _function_tool(value: Any, path: str) -> ToolDefinition:
    _, read = f.read_kind(
        value,
        path,
        {"function": TOOL_FIELDS},
        lambda kind: f"'{kind}' is not offered here, only functions are",
    )
    parameters = read.get("parameters")
    return ToolDefinition(
        name=read["name"],
        path=path,
        description=read.get("description"),
        parameters=parameters,
        strict=read.get("strict", parameters is not None and is_strict(parameters)),
    )


NAMESPACE_FIELDS = f.table(
    f.required("type", f.one_of("namespace"), "namespace"),
    f.required("name", tool_name, "The model is shown namespace.name."),
    f.honoured("description", _string, "Put into the prompt with the first of its functions."),
    f.required("tools", f.array(_function_tool), "Functions."),
)


def _tool_object(tool: ToolDefinition | Namespace) -> dict[str, Any]:
    if isinstance(tool, Namespace):
        return {
            "type": "namespace",
            "name": tool.name,
            "description": tool.description or "",
            "tools": [_tool_object(function) for function in tool.functions],
        }
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }


NAMED_FIELDS = f.table(
    f.required("type", f.only("function", reason="only functions can be chosen"), "function"),
    f.required("name", _string, "Its name; of a namespace's function, namespace.name."),
)
ALLOWED_TOOLS_FIELDS = f.table(
    f.honoured("type", f.one_of("allowed_tools"), "allowed_tools"),
    f.required("mode", f.one_of("auto", "required"), "auto or required."),
    f.required("tools", f.array(NAMED_FIELDS.read, min_items=1), "Which functions."),
)


def tool_choice(value: Any, path: str) -> Choosing:
    if isinstance(value, str):
        return any_tool(value, path)
    kind = f.kind_of(value, path)
    if kind == "allowed_tools":
        read = ALLOWED_TOOLS_FIELDS.read(value, path)
        return Choosing(
            ToolChoice(mode=read["mode"]), [tool["name"] for tool in read["tools"]], value
        )
    if kind != "function":
        raise UnsupportedParameterError(
            f"{path}.type", f"'{f.shown(kind)}' cannot be chosen, only functions can"
        )
    named = ToolChoice(mode="required", name=NAMED_FIELDS.read(value, path)["name"])
    return Choosing(named, given=value)


ENFORCEABLE = frozenset(
    {
        *("type", "properties", "required", "additionalProperties", "items"),
        *("enum", "const", "anyOf"),
        *("title", "description", "$schema"),
    }
)
"""Every grammar supports these. Schemas with others are enforced only where ``strict`` is set."""


def is_strict(schema: dict[str, Any]) -> bool:
    """OpenAI's rule: objects at any depth allow no further properties and require all their own."""
    return schema.get("type") == "object" and _fits(schema)


def _fits(node: Any) -> bool:
    """False for a value that is no schema, too; other checks refuse it."""
    if not isinstance(node, dict) or not node.keys() <= ENFORCEABLE:
        return False
    properties = node.get("properties", {})
    choices = node.get("anyOf", [])
    if not isinstance(properties, dict) or not isinstance(choices, list):
        return False
    is_object = node.get("type") == "object" or "properties" in node
    if is_object and not _is_closed(node, properties):
        return False
    inner = [*properties.values(), *choices, *([node["items"]] if "items" in node else [])]
    return all(map(_fits, inner))


def _is_closed(node: dict[str, Any], properties: dict[str, Any]) -> bool:
    required = node.get("required", [])
    if not isinstance(required, list) or any(not isinstance(name, str) for name in required):
        return False
    return node.get("additionalProperties") is False and properties.keys() <= set(required)
