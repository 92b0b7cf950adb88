"""POST /v1/messages."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import anthropic
import httpx2

from helexa_acp.config import Endpoint
from helexa_acp.conversation.history import Usage
from helexa_acp.errors import EndpointError
from helexa_acp.wire.base import (
    HEADERS,
    NO_KEY,
    CallMade,
    Finished,
    ModelRequest,
    Reason,
    TextDelta,
    ThoughtDelta,
    ThoughtSealed,
    WireEvent,
    sdk_http,
)
from helexa_acp.wire.json_object import JsonObject
from helexa_acp.wire.messages_body import request_body
from helexa_acp.wire.tolerant import fed, is_readable

VERSION = "2023-06-01"
REASONS: dict[str, Reason] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}


def open_wire(endpoint: Endpoint) -> MessagesWire:
    """The SDK adds ``/v1`` itself, and would send the key as a bearer: servers that speak this API
    look for it in ``x-api-key``. Raises ConfigError."""
    key = endpoint.api_key or NO_KEY
    headers: Any = {
        **HEADERS,
        "anthropic-version": VERSION,
        "x-api-key": key,
        "Authorization": anthropic.Omit(),
    }
    client = anthropic.AsyncAnthropic(
        api_key=key,
        base_url=endpoint.base_url.removesuffix("/v1"),
        http_client=sdk_http(endpoint),
        default_headers=headers,
    )
    return MessagesWire(client)


class TolerantStream(anthropic.AsyncStream[object]):
    """A stream that skips events that are not JSON."""

    async def _iter_events(self) -> AsyncIterator[Any]:
        async for event in super()._iter_events():
            if is_readable(event.data):
                yield event


class MessagesWire:
    def __init__(self, client: anthropic.AsyncAnthropic) -> None:
        self._client = client

    async def stream(self, request: ModelRequest) -> AsyncGenerator[WireEvent, None]:
        with _errors():
            posting = self._client.post(
                "/v1/messages",
                body=request_body(request),
                cast_to=object,
                stream=True,
                stream_cls=TolerantStream,
            )
            async with await posting as events:
                answer = MessageAnswer()
                async for event in events:
                    for made in fed(answer.feed, event):
                        yield made
                if not answer.is_ended:
                    raise ValueError("it ended without message_stop")

    async def close(self) -> None:
        await self._client.close()


@dataclass(slots=True)
class _OpenCall:
    call_id: str
    name: str
    given: Any = None
    """The input that came with the call's beginning."""
    arguments: str = ""


class MessageAnswer:
    """Folds the stream's events into ours."""

    def __init__(self) -> None:
        self.is_ended = False
        self._call: _OpenCall | None = None
        self._signature = ""
        self._reason: Reason = "stop"
        self._usage = Usage()

    def feed(self, event: JsonObject) -> list[WireEvent]:
        match event.type:
            case "message_start":
                self._count(event.message.usage)
            case "content_block_start":
                return self._block_started(event.content_block)
            case "content_block_delta":
                return self._delta(event.delta)
            case "content_block_stop":
                return self._block_stopped()
            case "message_delta":
                self._reason = REASONS.get(event.delta.stop_reason or "", "stop")
                self._count(event.usage)
            case "message_stop":
                self.is_ended = True
                return [Finished(self._reason, self._usage)]
        return []

    def _block_started(self, block: JsonObject) -> list[WireEvent]:
        match block.type:
            case "tool_use":
                given = block.raw.get("input")
                self._call = _OpenCall(block.id or "", block.name or "", given)
            case "text" if block.text:
                return [TextDelta(block.text)]
            case "thinking":
                self._signature = block.signature or ""
                return [ThoughtDelta(block.thinking)] if block.thinking else []
            case "redacted_thinking":
                return [ThoughtSealed(block.without_nulls())]
        return []

    def _delta(self, delta: JsonObject) -> list[WireEvent]:
        match delta.type:
            case "text_delta":
                return [TextDelta(delta.text)]
            case "thinking_delta":
                return [ThoughtDelta(delta.thinking)]
            case "signature_delta":
                self._signature += delta.signature
            case "input_json_delta" if self._call is not None:
                self._call.arguments += delta.partial_json
        return []

    def _block_stopped(self) -> list[WireEvent]:
        call, self._call = self._call, None
        signature, self._signature = self._signature, ""
        if call is not None:
            given = json.dumps(call.given) if call.given else ""
            return [CallMade(call.call_id, call.name, call.arguments or given)]
        return [ThoughtSealed(signature)] if signature else []

    def _count(self, counts: JsonObject | None) -> None:
        """Later counts replace earlier ones; a missing count stays as it was."""
        if counts is None:
            return
        fresh = counts.input_tokens
        read = counts.cache_read_input_tokens or 0
        made = counts.cache_creation_input_tokens or 0
        if fresh is not None:
            self._usage.input_tokens = fresh + read + made
            self._usage.cached_tokens = read
        self._usage.output_tokens = counts.output_tokens or 0
        self._usage.last_total_tokens = self._usage.input_tokens + self._usage.output_tokens


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except anthropic.APIStatusError as error:
        message, code = _error_of(error.body)
        raise EndpointError(
            message or error.message, status=error.status_code, code=code
        ) from error
    except anthropic.APITimeoutError as error:
        raise EndpointError("it did not answer in time") from error
    except anthropic.APIConnectionError as error:
        raise EndpointError(f"it cannot be reached: {error.__cause__ or error}") from error
    except anthropic.AnthropicError as error:
        raise EndpointError(str(error), status=400) from error
    except (httpx2.HTTPError, ValueError) as error:
        raise EndpointError(f"its answer broke off: {error or type(error).__name__}") from error


def _error_of(body: object) -> tuple[str | None, str | None]:
    """The message, and helexa's code or the API's own type."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return None, None
    details = error.get("details")
    code = details.get("code") if isinstance(details, dict) else None
    message, kind = error.get("message"), code or error.get("type")
    return (
        message if isinstance(message, str) else None,
        kind if isinstance(kind, str) else None,
    )
