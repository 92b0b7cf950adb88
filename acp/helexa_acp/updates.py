"""Prompts' blocks as parts of a turn, updates, and lists of models and modes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from acp import (
    image_block,
    start_tool_call,
    text_block,
    tool_content,
    update_agent_message,
    update_agent_thought_text,
    update_user_message,
)
from acp.schema import (
    AgentMessageChunk,
    ConfigOptionUpdate,
    ContentToolCallContent,
    ImageContentBlock,
    TextContentBlock,
    ToolCallLocation,
    ToolCallStart,
)

from helexa_acp.config import Selector
from helexa_acp.errors import ConfigError
from helexa_acp.history import Image, Part, Text, ToolCall, ToolResult, Turn, UserTurn, clean
from helexa_acp.sessions import Session
from helexa_acp.tools import MODE_NAMES, Tool
from helexa_acp.tools.update_plan import UPDATE_PLAN, replayed_plan

Status = Literal["pending", "in_progress", "completed", "failed"]
MODEL_OPTION = "model"
IMAGE_TYPE = re.compile(r"image/[\w.+-]+")
BASE64 = re.compile(r"[A-Za-z0-9+/\s]*={0,2}\s*")


def parts_of(blocks: Sequence[Any]) -> tuple[Part, ...]:
    """Raises ConfigError."""
    parts = tuple(_part(block) for block in blocks)
    if not any(isinstance(part, Image) or part.text.strip() for part in parts):
        raise ConfigError("the prompt is empty")
    return parts


def _part(block: Any) -> Part:
    match block.type:
        case "text":
            return Text(clean(block.text))
        case "image":
            return _image(block.mime_type, block.data)
        case "resource_link":
            return Text(f"[@{clean(block.name)}]({_place(clean(block.uri))})")
        case "resource":
            return _resource(block.resource)
        case kind:
            raise ConfigError(f"content of type {kind} is not taken")


def _image(mime_type: str, data: str) -> Image:
    if not IMAGE_TYPE.fullmatch(mime_type) or not data or not BASE64.fullmatch(data):
        raise ConfigError("an image must have an image's type and be Base64")
    return Image(mime_type, "".join(data.split()))


def _resource(resource: Any) -> Part:
    uri = clean(resource.uri)
    text = getattr(resource, "text", None)
    if text is not None:
        return Text(f'<file path="{_place(uri)}">\n{clean(text)}\n</file>')
    mime_type = resource.mime_type or ""
    if mime_type.startswith("image/"):
        return _image(mime_type, resource.blob)
    return Text(f"[{_place(uri)}: {mime_type or 'binary'}, not shown]")


def _place(uri: str) -> str:
    try:
        split = urlsplit(uri)
    except ValueError:
        return uri
    if split.scheme != "file":
        return uri
    return unquote(split.path) + (f"#{split.fragment}" if split.fragment else "")


def block(part: Part) -> TextContentBlock | ImageContentBlock:
    match part:
        case Text(text):
            return text_block(text)
        case Image(mime_type, data):
            return image_block(data, mime_type)


def message(text: str) -> AgentMessageChunk:
    return update_agent_message(text_block(text))


def contents(parts: Sequence[Part]) -> list[ContentToolCallContent]:
    return [tool_content(block(part)) for part in parts]


def locations(paths: Sequence[Path]) -> list[ToolCallLocation] | None:
    return [ToolCallLocation(path=str(path)) for path in paths] or None


def call_started(
    call: ToolCall,
    tool: Tool | None,
    title: str,
    *,
    status: Status = "pending",
    paths: Sequence[Path] = (),
    shown: Sequence[Any] = (),
) -> ToolCallStart:
    return start_tool_call(
        call.call_id,
        title,
        kind=tool.kind if tool else "other",
        status=status,
        raw_input=call.arguments,
        locations=locations(paths),
        content=shown or None,
    )


def call_failed(call: ToolCall, tool: Tool | None, result: ToolResult) -> ToolCallStart:
    shown = contents(result.parts)
    return call_started(call, tool, call.name, status="failed", shown=shown)


def replayed(history: Sequence[Turn], tools: Sequence[Tool]) -> Iterator[Any]:
    results = {turn.call_id: turn for turn in history if isinstance(turn, ToolResult)}
    for turn in history:
        if isinstance(turn, ToolResult):
            continue
        if isinstance(turn, UserTurn):
            yield from (update_user_message(block(part)) for part in turn.parts)
            continue
        yield from (update_agent_thought_text(one.text) for one in turn.thoughts if one.text)
        if turn.text:
            yield message(turn.text)
        for call in turn.calls:
            tool = next((one for one in tools if one.spec.name == call.name), None)
            yield from _replayed_call(call, tool, results[call.call_id])


def _replayed_call(call: ToolCall, tool: Tool | None, result: ToolResult) -> Iterator[Any]:
    """The title is from the arguments alone: the disk may have changed."""
    told = [call.arguments.get(key) for key in ("path", "command", "pattern", "url")]
    told = [one for one in told if isinstance(one, str)]
    title = f"{call.name}: {told[0]}" if told else call.name
    status: Status = "failed" if result.is_error else "completed"
    yield call_started(call, tool, title, status=status, shown=contents(result.parts))
    if tool is UPDATE_PLAN and not result.is_error:
        plan = replayed_plan(call.arguments)
        if plan is not None:
            yield plan


def opened(session: Session) -> dict[str, Any]:
    config = session.home.config
    modes = [
        {"id": mode.value, "name": name, "description": description}
        for mode, (name, description) in MODE_NAMES.items()
    ]
    ids = _model_ids(session)
    return {
        "modes": {"currentModeId": session.record.mode.value, "availableModes": modes},
        "models": {
            "currentModelId": session.selector.picker_id(config),
            "availableModels": [{"modelId": one, "name": one} for one in ids],
        },
        "configOptions": config_options(session),
    }


def config_options(session: Session) -> list[dict[str, Any]]:
    option = {
        "type": "select",
        "id": MODEL_OPTION,
        "name": "Model",
        "category": "model",
        "currentValue": session.selector.picker_id(session.home.config),
        "options": [{"value": one, "name": one} for one in _model_ids(session)],
    }
    return [option]


def options_changed(session: Session) -> ConfigOptionUpdate:
    update = {"sessionUpdate": "config_option_update", "configOptions": config_options(session)}
    return ConfigOptionUpdate.model_validate(update)


def _model_ids(session: Session) -> list[str]:
    config, endpoints = session.home.config, session.home.endpoints
    found: list[Selector] = []
    for endpoint in config.endpoints:
        models = [offer.model for offer in endpoints.offers(endpoint)]
        named = [endpoint.default_model] if endpoint.default_model else []
        found += [Selector(endpoint, model) for model in (*named, *models)]
    return list(dict.fromkeys(one.picker_id(config) for one in (*found, session.selector)))
