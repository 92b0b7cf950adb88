"""Ollama's generate: one prompt, as a chat of one turn, or raw. Without a prompt the model is only
loaded.

Source: https://docs.ollama.com/api/generate. Pure.
"""

from __future__ import annotations

from typing import Any

from inference.protocol.generation import ChatMessage, TextInput
from inference.wire.common.fields import (
    flag,
    honoured,
    neutral,
    only,
    read_fields,
    read_json_object,
    refused,
    table,
    text,
)
from inference.wire.dialect import NO_CONTEXT, RequestContext
from inference.wire.errors import InvalidRequestError
from inference.wire.ollama.chat import OllamaRequest, chat_input, request_of
from inference.wire.ollama.fields import SHARED_FIELDS
from inference.wire.ollama.messages import IMAGES, seen

FIELDS = table(
    *SHARED_FIELDS,
    honoured("prompt", text(), "Text; none: the model is loaded, and nothing answered."),
    honoured("system", text(), "A system turn before it."),
    honoured("raw", flag, "true: the prompt as it is, without the chat template."),
    neutral("suffix", only("", reason="text is not inserted"), '""'),
    neutral("template", only("", reason="the model's own template is used"), '""'),
    neutral("context", only([], reason="use /api/chat with the turns themselves"), "[]"),
    IMAGES,
    refused("width", "images are not generated"),
    refused("height", "images are not generated"),
    refused("steps", "images are not generated"),
)


def parse(body: bytes, context: RequestContext = NO_CONTEXT) -> OllamaRequest:
    """Raises ``ApiError`` (400) for everything that is not a request this server honours whole."""
    read = read_fields(read_json_object(body), FIELDS, required=("model",))
    prompt: str = read.get("prompt", "")
    if read.get("raw", False) and (prompt or read.get("images")):
        _check_raw(read)
        return request_of(read, TextInput(texts=[prompt]), is_chat=False, only_loads=False)
    turns = [ChatMessage(role="user", content=prompt, parts=seen(read, "prompt"))]
    if system := read.get("system", ""):
        turns.insert(0, ChatMessage(role="system", content=system))
    chat = chat_input(read, turns)
    return request_of(read, chat, is_chat=False, only_loads=not prompt and not turns[-1].images)


def _check_raw(read: dict[str, Any]) -> None:
    for name in ("system", "think", "images"):
        if read.get(name):
            raise InvalidRequestError(
                f"'{name}' is for the chat template, which 'raw' leaves out.", param=name
            )
