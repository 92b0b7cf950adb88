"""A conversation as a file: JSON has everything, Markdown is for reading. Pure."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

from metering.playground.state import ConversationState, Spoken, ToolCall, Turn

FENCE = re.compile(r"`{3,}")


def as_json(state: dict[str, Any], *, title: str, updated_at: datetime) -> str:
    """``state``: as ``state_values`` returns it."""
    whole = {"title": title, "updated_at": updated_at.isoformat(), **state}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def as_markdown(state: ConversationState, *, title: str, updated_at: datetime) -> str:
    parts = [f"# {title}", f"{updated_at:%Y-%m-%d %H:%M} UTC"]
    if state.system:
        parts += ["## System prompt", state.system]
    for turn in state.turns:
        parts += _question(turn) if turn.role == "user" else _answers(turn)
    return "\n\n".join(parts) + "\n"


def _question(turn: Turn) -> list[str]:
    images = [f"![Image {number}]({url})" for number, url in enumerate(turn.images, 1)]
    return ["## Question", *images, *([turn.text] if turn.text else [])]


def _answers(turn: Turn) -> list[str]:
    parts: list[str] = []
    for answer in (turn, *turn.beside):
        parts += _answer(answer)
    return parts


def _answer(answer: Spoken) -> list[str]:
    parts = [f"## Answer of {answer.model}" if answer.model else "## Answer"]
    if answer.thinking:
        parts.append("\n".join(f"> {line}".rstrip() for line in answer.thinking.splitlines()))
    if answer.text:
        parts.append(answer.text)
    for call in answer.calls:
        parts += _call(call)
    if answer.error:
        parts.append(f"*{answer.error}*")
    return parts


def _call(call: ToolCall) -> list[str]:
    parts = [f"Call of `{call.name}`:", _block(call.arguments, "json")]
    return [*parts, "Result:", _block(call.result, "")] if call.result else parts


def _block(text: str, language: str) -> str:
    """Fenced by more backticks than the text has anywhere."""
    fence = "`" * max([3, *(len(found) + 1 for found in FENCE.findall(text))])
    return f"{fence}{language}\n{text}\n{fence}"
