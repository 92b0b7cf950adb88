"""A conversation as values, and as the JSON of a session's file. Pure.

UserTurn, AssistantTurn (text, thoughts, calls), ToolResult (one for each call), UserTurn, ...
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

INVALID_CALL = "<invalid>"
"""The name of a call that could not be understood."""
INTERRUPTED = "ERROR: interrupted before it was done."


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Image:
    mime_type: str
    data: str
    """Base64."""


Part = Text | Image


@dataclass(frozen=True, slots=True)
class Thought:
    """``sealed`` is what the endpoint wants back with it, as it came: a signature, or an item."""

    text: str
    sealed: Any = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    call_id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class UserTurn:
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantTurn:
    text: str = ""
    thoughts: tuple[Thought, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    images: tuple[Image, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    call_id: str
    name: str
    parts: tuple[Part, ...]
    is_error: bool = False


Turn = UserTurn | AssistantTurn | ToolResult


@dataclass(slots=True)
class Usage:
    """Tokens as the endpoint counted them; requests add up."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    thought_tokens: int = 0
    last_total_tokens: int = field(default=0, compare=False)
    """Prompt and answer of the latest request: how full the context is."""

    def add(self, other: Usage) -> None:
        self.input_tokens += other.input_tokens
        self.output_tokens += other.output_tokens
        self.cached_tokens += other.cached_tokens
        self.thought_tokens += other.thought_tokens
        if other.last_total_tokens:
            self.last_total_tokens = other.last_total_tokens


def text_of(parts: tuple[Part, ...]) -> str:
    return "\n".join(part.text for part in parts if isinstance(part, Text))


def answered(history: list[Turn]) -> list[Turn]:
    """The history with a result for every call: a process that died may have left some without."""
    results = {turn.call_id for turn in history if isinstance(turn, ToolResult)}
    whole: list[Turn] = []
    missing: list[ToolResult] = []
    for turn in history:
        if not isinstance(turn, ToolResult):
            whole += missing
            missing = []
        whole.append(turn)
        if isinstance(turn, AssistantTurn):
            missing = [
                interrupted(call, INTERRUPTED) for call in turn.calls if call.call_id not in results
            ]
    return whole + missing


def interrupted(call: ToolCall, why: str) -> ToolResult:
    return ToolResult(call_id=call.call_id, name=call.name, parts=(Text(why),), is_error=True)


def clean_part(part: Part) -> Part:
    match part:
        case Text(text):
            return Text(clean(text))
        case Image(mime_type, data):
            return Image(clean(mime_type), clean(data))


def clean(value: Any) -> Any:
    """JSON without lone surrogates, which no UTF-8 can hold."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, list):
        return [clean(one) for one in value]
    if isinstance(value, dict):
        return {clean(key): clean(one) for key, one in value.items()}
    return value


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
