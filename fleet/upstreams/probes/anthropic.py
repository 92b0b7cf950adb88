"""Probes of Anthropic's messages, and of its counting of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleet.upstreams.http import Answer
from fleet.upstreams.probes import asking as shared
from fleet.upstreams.probes.asking import Asking, Step

TOOL = {
    "name": shared.TOOL_NAME,
    "description": shared.TOOL_DESCRIPTION,
    "input_schema": shared.SCHEMA,
}


def _send(asking: Asking, content: Any, **fields: Any) -> Answer:
    """Raises ``UpstreamUnavailableError``."""
    messages = [{"role": "user", "content": content}]
    body = {"model": asking.model, "messages": messages, "max_tokens": shared.MAX_TOKENS, **fields}
    return asking.post(f"{asking.url}/v1/messages", body)


def _blocks(asking: Asking, content: Any, **fields: Any) -> list[dict[str, Any]]:
    """Raises ``UpstreamUnavailableError``."""
    body = _send(asking, content, **fields).json()
    blocks = body.get("content") if isinstance(body, dict) else None
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise shared.no_answer()
    return blocks


def _stream(asking: Asking) -> str:
    answer = _send(asking, shared.HELLO, stream=True)
    return shared.check_stream(answer, b'"message_start"', b'"output_tokens"')


def _tools(asking: Asking) -> str:
    blocks = _blocks(asking, shared.REPORT, tools=[TOOL], tool_choice={"type": "any"})
    if not any(block.get("type") == "tool_use" for block in blocks):
        raise shared.no_call()
    return ""


def _schema(asking: Asking) -> str:
    form = {"type": "json_schema", "schema": shared.SCHEMA}
    blocks = _blocks(asking, shared.REPORT_JSON, output_config={"format": form})
    texts = [str(block.get("text", "")) for block in blocks if block.get("type") == "text"]
    return shared.check_schema("".join(texts))


def _images(asking: Asking) -> str:
    source = {"type": "base64", "media_type": "image/png", "data": shared.RED_PNG}
    image = {"type": "image", "source": source}
    _blocks(asking, [image, {"type": "text", "text": shared.COLOUR}])
    return ""


def _counting(asking: Asking) -> str:
    body = {"model": asking.model, "messages": [{"role": "user", "content": "hello"}]}
    found = asking.post(f"{asking.url}/v1/messages/count_tokens", body).json()
    if not isinstance(found, dict) or "input_tokens" not in found:
        raise shared.no_answer()
    return ""


STEPS: Mapping[str, Step] = {
    shared.STREAM: _stream,
    shared.TOOLS: _tools,
    shared.SCHEMAS: _schema,
    shared.IMAGES: _images,
    shared.COUNTING: _counting,
}
