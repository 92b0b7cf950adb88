"""Updates to the editor, and its lists of models and modes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from acp import (
    image_block,
    start_tool_call,
    text_block,
    tool_content,
    update_agent_message,
    update_agent_thought_text,
    update_plan,
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

from helexa_acp.config import Config, Selector
from helexa_acp.endpoints import Endpoints
from helexa_acp.errors import ToolError
from helexa_acp.history import (
    AssistantTurn,
    Image,
    Part,
    Text,
    ToolCall,
    ToolResult,
    Turn,
    UserTurn,
)
from helexa_acp.modes import MODE_NAMES, Mode
from helexa_acp.sessions import Session
from helexa_acp.tools.base import Tool
from helexa_acp.tools.update_plan import TOOL as UPDATE_PLAN
from helexa_acp.tools.update_plan import plan_entries

Status = Literal["pending", "in_progress", "completed", "failed"]
MODEL_OPTION = "model"


def block(part: Part) -> TextContentBlock | ImageContentBlock:
    match part:
        case Text(text):
            return text_block(text)
        case Image(mime_type, data):
            return image_block(data, mime_type)


def message(part: Part) -> AgentMessageChunk:
    return update_agent_message(block(part))


def call_started(
    call: ToolCall,
    *,
    title: str,
    tool: Tool | None,
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
        locations=[ToolCallLocation(path=str(path)) for path in paths] or None,
        content=shown or None,
    )


def call_failed(call: ToolCall, tool: Tool | None, parts: Sequence[Part]) -> ToolCallStart:
    """A call that was not run: ``parts`` are the reason."""
    return call_started(call, title=call.name, tool=tool, status="failed", shown=contents(parts))


def contents(parts: Sequence[Part]) -> list[ContentToolCallContent]:
    return [tool_content(block(part)) for part in parts]


def replayed(history: Sequence[Turn], tools: dict[str, Tool]) -> Iterator[Any]:
    """Repeats the whole conversation for an editor that opens it."""
    results = {turn.call_id: turn for turn in history if isinstance(turn, ToolResult)}
    for turn in history:
        match turn:
            case UserTurn(parts):
                yield from (update_user_message(block(part)) for part in parts)
            case AssistantTurn():
                yield from (
                    update_agent_thought_text(one.text) for one in turn.thoughts if one.text
                )
                if turn.text:
                    yield message(Text(turn.text))
                yield from map(message, turn.images)
                for call in turn.calls:
                    yield from _replayed_call(call, results.get(call.call_id), tools)


def _replayed_call(
    call: ToolCall, result: ToolResult | None, tools: dict[str, Tool]
) -> Iterator[Any]:
    failed = result is None or result.is_error
    yield call_started(
        call,
        title=_title(call),
        tool=tools.get(call.name),
        status="failed" if failed else "completed",
        shown=contents(result.parts) if result is not None else (),
    )
    if call.name == UPDATE_PLAN.spec.name and not failed:
        try:
            yield update_plan(plan_entries(call.arguments))
        except ToolError:
            return


def _title(call: ToolCall) -> str:
    """A title from the arguments alone, without reading the disk, which may have changed."""
    for key in ("path", "command", "pattern", "url"):
        if isinstance(value := call.arguments.get(key), str):
            return f"{call.name}: {value}"
    return call.name


def opened(config: Config, endpoints: Endpoints, session: Session) -> dict[str, Any]:
    """The modes and models in the answer that opens a session."""
    ids = model_ids(config, endpoints, session)
    return {
        "modes": {
            "currentModeId": session.mode.value,
            "availableModes": [
                {"id": mode.value, "name": MODE_NAMES[mode][0], "description": MODE_NAMES[mode][1]}
                for mode in Mode
            ],
        },
        "models": {
            "currentModelId": session.selector.picker_id(config),
            "availableModels": [{"modelId": one, "name": one} for one in ids],
        },
        "configOptions": config_options(config, endpoints, session),
    }


def config_options(config: Config, endpoints: Endpoints, session: Session) -> list[dict[str, Any]]:
    ids = model_ids(config, endpoints, session)
    return [
        {
            "type": "select",
            "id": MODEL_OPTION,
            "name": "Model",
            "category": "model",
            "currentValue": session.selector.picker_id(config),
            "options": [{"value": one, "name": one} for one in ids],
        }
    ]


def options_changed(config: Config, endpoints: Endpoints, session: Session) -> ConfigOptionUpdate:
    return ConfigOptionUpdate.model_validate(
        {
            "sessionUpdate": "config_option_update",
            "configOptions": config_options(config, endpoints, session),
        }
    )


def model_ids(config: Config, endpoints: Endpoints, session: Session) -> list[str]:
    return [one.picker_id(config) for one in selectors(config, endpoints, session.selector)]


def selectors(config: Config, endpoints: Endpoints, chosen: Selector) -> list[Selector]:
    """Each once: the endpoints' models, and always the configured and the chosen one."""
    found: dict[tuple[str, str], Selector] = {}
    for endpoint in config.endpoints:
        models = [offer.model for offer in endpoints.offers(endpoint)]
        named = [endpoint.default_model] if endpoint.default_model else []
        for model in (*named, *models):
            found.setdefault((endpoint.name, model), Selector(endpoint, model))
    found.setdefault((chosen.endpoint.name, chosen.model), chosen)
    return list(found.values())
