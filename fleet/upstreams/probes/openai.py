"""Probes of OpenAI's chat completions, and of token counting as vLLM and llama-server have it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleet.errors import UpstreamUnavailableError
from fleet.upstreams.http import Answer, unversioned
from fleet.upstreams.probes import asking as shared
from fleet.upstreams.probes.asking import Asking, Step

TOOL = {
    "type": "function",
    "function": {
        "name": shared.TOOL_NAME,
        "description": shared.TOOL_DESCRIPTION,
        "parameters": shared.SCHEMA,
    },
}


def _chat(asking: Asking, content: Any, **fields: Any) -> Answer:
    """Raises ``UpstreamUnavailableError``."""
    messages = [{"role": "user", "content": content}]
    body = {"model": asking.model, "messages": messages, "max_tokens": shared.MAX_TOKENS, **fields}
    return asking.post(f"{asking.url}/chat/completions", body)


def _message(asking: Asking, content: Any, **fields: Any) -> dict[str, Any]:
    """Raises ``UpstreamUnavailableError``."""
    body = _chat(asking, content, **fields).json()
    try:
        message = body["choices"][0]["message"]
    except (LookupError, TypeError):
        message = None
    if not isinstance(message, dict):
        raise shared.no_answer()
    return message


def _stream(asking: Asking) -> str:
    options = {"include_usage": True}
    answer = _chat(asking, shared.HELLO, stream=True, stream_options=options)
    return shared.check_stream(answer, b"chat.completion.chunk", b'"prompt_tokens"')


def _tools(asking: Asking) -> str:
    message = _message(asking, shared.REPORT, tools=[TOOL], tool_choice="required")
    if not message.get("tool_calls"):
        raise shared.no_call()
    return ""


def _schema(asking: Asking) -> str:
    wanted = {"name": "answer", "schema": shared.SCHEMA, "strict": True}
    form = {"type": "json_schema", "json_schema": wanted}
    message = _message(asking, shared.REPORT_JSON, response_format=form)
    return shared.check_schema(message.get("content"))


def _images(asking: Asking) -> str:
    url = f"data:image/png;base64,{shared.RED_PNG}"
    image = {"type": "image_url", "image_url": {"url": url}}
    _message(asking, [{"type": "text", "text": shared.COLOUR}, image])
    return ""


def _counting(asking: Asking) -> str:
    """vLLM, SGLang and helexa count a chat, as clients ask for it; llama-server counts text."""
    messages = [{"role": "user", "content": shared.HELLO}]
    try:
        _count(asking, {"model": asking.model, "messages": messages})
    except UpstreamUnavailableError:
        _count(asking, {"content": shared.HELLO})
        return "of text; a chat's tokens, which clients ask for, it does not count"
    return ""


def _count(asking: Asking, body: dict[str, Any]) -> None:
    """Raises ``UpstreamUnavailableError``."""
    found = asking.post(f"{unversioned(asking.url)}/tokenize", body).json()
    if not isinstance(found, dict) or not (found.get("count") or found.get("tokens")):
        raise shared.no_answer()


STEPS: Mapping[str, Step] = {
    shared.STREAM: _stream,
    shared.TOOLS: _tools,
    shared.SCHEMAS: _schema,
    shared.IMAGES: _images,
    shared.COUNTING: _counting,
}
