"""Turns as JSON and back. What it reads may be anything: a wrong shape raises ValueError."""

from __future__ import annotations

from typing import Any

from helexa_acp.conversation.history import (
    AssistantTurn,
    Image,
    Part,
    Text,
    Thought,
    ToolCall,
    ToolResult,
    Turn,
    UserTurn,
)


def turn_to_json(turn: Turn) -> dict[str, Any]:
    match turn:
        case UserTurn(parts):
            return {"role": "user", "parts": [_part_to_json(part) for part in parts]}
        case ToolResult():
            return {
                "role": "tool",
                "call_id": turn.call_id,
                "name": turn.name,
                "parts": [_part_to_json(part) for part in turn.parts],
                "is_error": turn.is_error,
            }
        case AssistantTurn():
            return {
                "role": "assistant",
                "text": turn.text,
                "thoughts": [{"text": one.text, "sealed": one.sealed} for one in turn.thoughts],
                "calls": [
                    {"id": call.call_id, "name": call.name, "arguments": call.arguments}
                    for call in turn.calls
                ],
                "images": [_part_to_json(image) for image in turn.images],
            }


def turn_from_json(read: Any) -> Turn:
    """Raises ValueError."""
    try:
        return _turn(read)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a turn: {error!r}") from None


def _turn(read: Any) -> Turn:
    match read["role"]:
        case "user":
            return UserTurn(tuple(_part(part) for part in read["parts"]))
        case "tool":
            return ToolResult(
                call_id=_text(read["call_id"]),
                name=_text(read["name"]),
                parts=tuple(_part(part) for part in read["parts"]),
                is_error=bool(read["is_error"]),
            )
        case "assistant":
            return AssistantTurn(
                text=_text(read["text"]),
                thoughts=tuple(Thought(_text(o["text"]), o["sealed"]) for o in read["thoughts"]),
                calls=tuple(
                    ToolCall(_text(call["id"]), _text(call["name"]), dict(call["arguments"]))
                    for call in read["calls"]
                ),
                images=tuple(_image(image) for image in read["images"]),
            )
        case other:
            raise ValueError(f"no turn has the role {other!r}")


def _part_to_json(part: Part) -> dict[str, Any]:
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case Image(mime_type, data):
            return {"type": "image", "mime_type": mime_type, "data": data}


def _part(read: Any) -> Part:
    return Text(_text(read["text"])) if read["type"] == "text" else _image(read)


def _image(read: Any) -> Image:
    return Image(_text(read["mime_type"]), _text(read["data"]))


def _text(read: Any) -> str:
    if not isinstance(read, str):
        raise TypeError(f"{type(read).__name__} where a string belongs")
    return read
