"""A last turn of the assistant that the model continues: the start of its answer. Pure."""

from __future__ import annotations

from inference.protocol.generation import ChatMessage
from inference.wire.errors import InvalidRequestError


def without_answer_start(chat: list[ChatMessage]) -> tuple[list[ChatMessage], str]:
    """A last turn of the assistant is the start of the answer, and no turn. Raises
    ``InvalidRequestError`` where it holds more than text."""
    *earlier, last = chat
    if last.role != "assistant":
        return chat, ""
    if last.tool_calls or last.reasoning:
        raise InvalidRequestError(
            "The last of 'messages' is the start of the answer and may hold text only.",
            param="messages",
        )
    return earlier, last.content or ""
