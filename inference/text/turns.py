"""A conversation as templates see it, in the forms that one template or another takes.

    system turns     one first turn > a user turn's first text > where they were sent
    tool calls       arguments as objects > as JSON text > with identifiers of nine characters
    neighbours       each by itself > those of one role, and a result and what follows it, as one

Forms are tried in that order: the last line's first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from inference.protocol.generation import ChatMessage, ToolCall

Turn = dict[str, Any]
Content = str | list[dict[str, str]]

SEPARATOR = "\n\n"
SHORT_ID_CHARACTERS = 9
"""Mistral's templates refuse identifiers of any other length."""


def arrangements(messages: list[ChatMessage]) -> Iterator[list[Turn]]:
    has_calls = any(message.tool_calls or message.tool_call_id for message in messages)
    forms = (plain_turns, _text_argument_turns, _short_id_turns) if has_calls else (plain_turns,)
    for form in forms:
        yield from _system_arrangements(form(messages))
    for form in forms:
        for turns in _system_arrangements(form(messages)):
            joined = _joined_neighbours(turns)
            if len(joined) < len(turns):
                yield joined


def plain_turns(messages: list[ChatMessage]) -> list[Turn]:
    return [_turn(message) for message in messages]


def _turn(message: ChatMessage) -> Turn:
    """Absent fields are left out, as templates test for their presence."""
    turn: Turn = {}
    if message.reasoning is not None:
        turn["thinking"] = message.reasoning  # what gpt-oss calls it
    turn |= {"role": message.role, "content": _content(message)}
    if message.name is not None:
        turn["name"] = message.name
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        turn["tool_calls"] = [_call(call) for call in message.tool_calls]
    if message.reasoning is not None:
        turn["reasoning_content"] = message.reasoning
    return turn


def _content(message: ChatMessage) -> Content:
    """Templates of vision models take a list where a turn has images."""
    if not message.images:
        return message.content or ""
    return [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"}
        for part in message.parts
    ]


def _call(call: ToolCall) -> dict[str, Any]:
    """Templates iterate arguments or write them with ``tojson``."""
    function = {"name": call.name, "arguments": call.arguments_object}
    return {"id": call.id, "type": "function", "function": function}


def _text_argument_turns(messages: list[ChatMessage]) -> list[Turn]:
    """Some templates put arguments beside other text."""
    turns = plain_turns(messages)
    for turn, message in zip(turns, messages, strict=True):
        for call, sent in zip(turn.get("tool_calls", []), message.tool_calls, strict=True):
            call["function"]["arguments"] = sent.arguments or "{}"
    return turns


def _short_id_turns(messages: list[ChatMessage]) -> list[Turn]:
    turns = plain_turns(messages)
    for turn in turns:
        for call in turn.get("tool_calls", []):
            call["id"] = _short_id(call["id"])
        if "tool_call_id" in turn:
            turn["tool_call_id"] = _short_id(turn["tool_call_id"])
    return turns


def _short_id(identity: str) -> str:
    return hashlib.sha256(identity.encode()).hexdigest()[:SHORT_ID_CHARACTERS]


def _system_arrangements(turns: list[Turn]) -> Iterator[list[Turn]]:
    systems = [turn for turn in turns if turn["role"] == "system"]
    if not systems:
        yield turns
        return
    others = [turn for turn in turns if turn["role"] != "system"]
    text = SEPARATOR.join(turn["content"] for turn in systems if turn["content"])
    yield [{**systems[0], "content": text}, *others]
    if others and others[0]["role"] == "user":
        yield [{**others[0], "content": _joined_content(text, others[0]["content"])}, *others[1:]]
    else:
        yield [{"role": "user", "content": text}, *others]
    if len(systems) > 1 or turns[0]["role"] != "system":
        yield turns


def _joined_neighbours(turns: list[Turn]) -> list[Turn]:
    """Makes turns alternate, for templates that take no others. A user's text behind a tool's
    result goes with it, because such templates expect the assistant next."""
    joined: list[Turn] = []
    for turn in turns:
        if joined and _go_together(joined[-1]["role"], turn["role"]):
            joined[-1] = _joined(joined[-1], turn)
        else:
            joined.append(turn)
    return joined


def _go_together(role: str, following: str) -> bool:
    return following == "user" if role == "tool" else following == role


def _joined(first: Turn, second: Turn) -> Turn:
    turn = {**first, "content": _joined_content(first["content"], second["content"])}
    for name in ("thinking", "reasoning_content"):
        if thoughts := [one[name] for one in (first, second) if one.get(name)]:
            turn[name] = SEPARATOR.join(thoughts)
    if calls := [*first.get("tool_calls", []), *second.get("tool_calls", [])]:
        turn["tool_calls"] = calls
    return turn


def _joined_content(first: Content, second: Content) -> Content:
    """Neighbouring texts become one part also beside images, because templates trim each part."""
    if not first or not second:
        return first or second
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}{SEPARATOR}{second}"
    *before, last = _parts(first)
    following, *rest = _parts(second)
    if last["type"] != "text":
        return [*before, last, following, *rest]
    if following["type"] != "text":
        return [*before, *_parts(last["text"] + SEPARATOR), following, *rest]
    return [*before, *_parts(last["text"] + SEPARATOR + following["text"]), *rest]


def _parts(content: Content) -> list[dict[str, str]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
