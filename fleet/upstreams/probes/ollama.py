"""Probes of Ollama's chat. It has no way to require a call, and none to count tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleet.errors import UpstreamUnavailableError
from fleet.upstreams.http import Answer
from fleet.upstreams.probes import asking as shared
from fleet.upstreams.probes.asking import Asking, Step
from fleet.upstreams.probes.openai import TOOL


def _chat(
    asking: Asking, content: str, *, images: list[str] | None = None, **fields: Any
) -> Answer:
    """Raises ``UpstreamUnavailableError``."""
    message: dict[str, Any] = {"role": "user", "content": content}
    if images:
        message["images"] = images
    body = {
        "model": asking.model,
        "messages": [message],
        "stream": False,
        "options": {"num_predict": shared.MAX_TOKENS},
        **fields,
    }
    return asking.post(f"{asking.url}/api/chat", body)


def _message(asking: Asking, content: str, **fields: Any) -> dict[str, Any]:
    """Raises ``UpstreamUnavailableError``."""
    body = _chat(asking, content, **fields).json()
    message = body.get("message") if isinstance(body, dict) else None
    if not isinstance(message, dict):
        raise shared.no_answer()
    return message


def _stream(asking: Asking) -> str:
    answer = _chat(asking, shared.HELLO, stream=True)
    if "x-ndjson" not in answer.content_type:
        raise shared.no_stream()
    return shared.check_stream(answer, b'"message"', b'"eval_count"')


def _tools(asking: Asking) -> str:
    if not _message(asking, shared.REPORT, tools=[TOOL]).get("tool_calls"):
        raise UpstreamUnavailableError("it called no tool where it was asked to")
    return ""


def _schema(asking: Asking) -> str:
    message = _message(asking, shared.REPORT_JSON, format=shared.SCHEMA, think=False)
    return shared.check_schema(message.get("content"))


def _images(asking: Asking) -> str:
    _message(asking, shared.COLOUR, images=[shared.RED_PNG])
    return ""


def _counting(asking: Asking) -> str:
    raise UpstreamUnavailableError("the dialect has no counting of tokens")


STEPS: Mapping[str, Step] = {
    shared.STREAM: _stream,
    shared.TOOLS: _tools,
    shared.SCHEMAS: _schema,
    shared.IMAGES: _images,
    shared.COUNTING: _counting,
}
