"""Sends a request to an endpoint of any API: retries, streams and errors.

The openai package is not used for it: with it 21 MB are installed instead of 10, and the process
imports 0.3 s longer (0.75 s, not 0.44). Streams tolerate some servers' malformed events.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from types import ModuleType
from typing import Any

import httpx2

from helexa_acp.config import Endpoint, WireApi
from helexa_acp.errors import EndpointError
from helexa_acp.http import event_data
from helexa_acp.wire import JsonObject, ModelRequest, WireEvent, chat, messages, responses

DIALECTS: dict[WireApi, ModuleType] = {
    "openai-chat": chat,
    "openai-responses": responses,
    "anthropic-messages": messages,
}
"""Each has its ``PATH``, ``headers``, ``request_body`` and ``Answer``."""
MAX_RETRIES = 2
RETRY_DELAY_S = 0.5
MAX_RETRY_DELAY_S = 60.0
RETRIED_STATUSES = frozenset({408, 409, 429, *range(500, 600)}) - {501}
END = "[DONE]"
SHOWN_CHARACTERS = 200
log = logging.getLogger(__name__)


async def stream(
    http: httpx2.AsyncClient, endpoint: Endpoint, request: ModelRequest
) -> AsyncGenerator[WireEvent, None]:
    """The answer's events; the last one is Finished. Closing the generator, or cancelling the
    waiting task, ends the request at the endpoint. Raises EndpointError."""
    dialect = DIALECTS[endpoint.wire_api]
    base_url = endpoint.base_url
    if dialect is messages:  # its own clients add the version where it is missing
        base_url = f"{base_url.removesuffix('/v1')}/v1"
    headers = {"x-include-thinking": "true", **dialect.headers(endpoint.api_key)}
    posting = http.build_request(
        "POST", base_url + dialect.PATH, json=dialect.request_body(request), headers=headers
    )
    answer = dialect.Answer()
    with _endpoint_errors():
        async with _answered(http, posting) as response:
            async for data in event_data(response):
                if data.startswith(END):
                    break
                for event in fed(answer, data):
                    yield event
        for event in answer.finish():
            yield event


def fed(answer: Any, data: str) -> list[WireEvent]:
    """The wire events of one event. One that is malformed is skipped. Raises EndpointError where
    it reports an error."""
    if not data.strip():
        return []
    try:
        event = json.loads(data)
        if event.get("error"):
            raise _refusal(400, event)
        events: list[WireEvent] = answer.feed(JsonObject(event))
    except (AttributeError, TypeError, KeyError, ValueError, RecursionError) as error:
        log.warning("skipped a malformed event (%s): %s", error, data[:SHOWN_CHARACTERS])
        return []
    return events


@contextlib.asynccontextmanager
async def _answered(
    http: httpx2.AsyncClient, posting: httpx2.Request
) -> AsyncIterator[httpx2.Response]:
    """The successful response. Busy and unreachable servers are asked again."""
    for tries_left in range(MAX_RETRIES, -1, -1):
        delay_s = RETRY_DELAY_S * 2 ** (MAX_RETRIES - tries_left)
        try:
            response = await http.send(posting, stream=True, follow_redirects=True)
        except httpx2.TransportError:
            if not tries_left:
                raise
            await asyncio.sleep(delay_s)
            continue
        try:
            if response.is_success:
                yield response
                return
            is_final = response.headers.get("x-should-retry") == "false"
            if not tries_left or is_final or response.status_code not in RETRIED_STATUSES:
                raise _refusal(response.status_code, _body(await response.aread()))
        finally:
            await response.aclose()
        await asyncio.sleep(_retry_after_s(response, delay_s))


def _retry_after_s(response: httpx2.Response, otherwise_s: float) -> float:
    try:
        asked_s = float(response.headers.get("retry-after", ""))
    except ValueError:
        return otherwise_s
    return asked_s if 0 < asked_s <= MAX_RETRY_DELAY_S else otherwise_s


def _body(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


@contextlib.contextmanager
def _endpoint_errors() -> Iterator[None]:
    try:
        yield
    except (httpx2.ConnectError, httpx2.ProxyError, httpx2.InvalidURL) as error:
        raise EndpointError(f"it cannot be reached: {error}") from error
    except httpx2.TimeoutException as error:
        raise EndpointError("it did not answer in time") from error
    except (httpx2.HTTPError, ValueError) as error:
        raise EndpointError(f"its answer broke off: {error or type(error).__name__}") from error


def _refusal(status: int, body: Any) -> EndpointError:
    """With OpenAI's code; for the messages API helexa's code in the details, or its type. An error
    in the stream has the status of the same refusal in a body, 400."""
    error = body.get("error", body) if isinstance(body, dict) else None
    if not isinstance(error, dict):
        error = {"message": error}
    details = error.get("details")
    in_details = details.get("code") if isinstance(details, dict) else None
    code = error.get("code") or in_details or error.get("type")
    message = error.get("message")
    return EndpointError(
        message if isinstance(message, str) else f"HTTP status {status}",
        status=status,
        code=code if isinstance(code, str) else None,
    )
