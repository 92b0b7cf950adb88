"""JSON-RPC messages as MCP writes them, and what comes of the results. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from helexa_acp import __version__
from helexa_acp.conversation.history import Image, Part, Text, clean
from helexa_acp.errors import McpError

REVISION = "2025-06-18"
METHOD_NOT_FOUND = -32601


@dataclass(frozen=True, slots=True)
class McpTool:
    name: str
    description: str
    schema: dict[str, Any]
    only_reads: bool


def initialize_params() -> dict[str, Any]:
    return {
        "protocolVersion": REVISION,
        "capabilities": {},
        "clientInfo": {"name": "helexa-acp", "version": __version__},
    }


def request(request_id: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


def notification(method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    return message if params is None else message | {"params": params}


def reply_to(asked: dict[str, Any]) -> dict[str, Any] | None:
    """Our answer to a server's request or notification; None: it needs none. We answer only
    ping."""
    if "id" not in asked:
        return None
    base = {"jsonrpc": "2.0", "id": asked["id"]}
    if asked.get("method") == "ping":
        return base | {"result": {}}
    return base | {"error": {"code": METHOD_NOT_FOUND, "message": "this client has no such method"}}


def result_of(response: dict[str, Any]) -> dict[str, Any]:
    """Raises McpError."""
    error = response.get("error")
    if error is not None:
        message = error.get("message") if isinstance(error, dict) else error
        raise McpError(f"it answered with an error: {str(message)[:1000]}")
    result = response.get("result")
    if not isinstance(result, dict):
        raise McpError("it answered with something that is no result")
    return result


def tools_of(result: dict[str, Any]) -> list[McpTool]:
    """The tools of one page; an entry that is no tool is left out."""
    listed = result.get("tools")
    found = []
    for entry in listed if isinstance(listed, list) else ():
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            continue
        schema, notes = entry.get("inputSchema"), entry.get("annotations")
        description = entry.get("description")
        found.append(
            McpTool(
                name=entry["name"],
                description=description if isinstance(description, str) else "",
                schema=_object_schema(clean(schema)),
                only_reads=isinstance(notes, dict) and notes.get("readOnlyHint") is True,
            )
        )
    return found


def _object_schema(schema: Any) -> dict[str, Any]:
    """APIs refuse tools whose schema is not an object's."""
    if not isinstance(schema, dict):
        schema = {}
    properties = schema.get("properties")
    own = {"type": "object", "properties": properties if isinstance(properties, dict) else {}}
    return {**schema, **own}


def parts_of(result: dict[str, Any]) -> tuple[Part, ...]:
    """A tool's answer: texts and images; other parts are named."""
    content = result.get("content")
    parts = [_part(block) for block in (content if isinstance(content, list) else ())]
    if not parts and "structuredContent" in result:
        parts = [Text(str(clean(result["structuredContent"])))]
    return tuple(parts) or (Text("[no content]"),)


def _part(block: Any) -> Part:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "text" and isinstance(block.get("text"), str):
        return Text(clean(block["text"]))
    if kind == "image" and all(isinstance(block.get(key), str) for key in ("data", "mimeType")):
        return Image(block["mimeType"], block["data"])
    resource = block.get("resource") if kind == "resource" else None
    if isinstance(resource, dict) and isinstance(resource.get("text"), str):
        return Text(clean(resource["text"]))
    if kind == "resource_link" and isinstance(block.get("uri"), str):
        return Text(f"[resource: {clean(block['uri'])}]")
    return Text(f"[content of type {clean(str(kind))[:50]}]")
