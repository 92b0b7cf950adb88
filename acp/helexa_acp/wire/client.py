"""The openai SDK's client for an endpoint of any API: its requests, retries, streams and errors.

The anthropic SDK is not used for its API: it adds 18 MB to the 27 that are installed, and its
import takes over twice as long, for the same client. Streams tolerate some servers' malformed
events.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from types import ModuleType
from typing import Any

import httpx2
import openai

from helexa_acp.config import Endpoint, WireApi
from helexa_acp.errors import EndpointError
from helexa_acp.proxies import open_http
from helexa_acp.wire import JsonObject, ModelRequest, WireEvent, chat, messages, responses

DIALECTS: dict[WireApi, ModuleType] = {
    "openai-chat": chat,
    "openai-responses": responses,
    "anthropic-messages": messages,
}
"""Each has its ``PATH``, ``headers``, ``request_body`` and ``Answer``."""
TIMEOUT = httpx2.Timeout(600.0, connect=10.0)
NO_KEY = "none"
"""The SDK requires a key; without one it would read one from the environment."""
END = "[DONE]"
SHOWN_CHARACTERS = 200
log = logging.getLogger(__name__)


class Wire:
    def __init__(self, endpoint: Endpoint) -> None:
        """``organization`` and ``project`` are unset, so that the SDK does not read those of
        another endpoint from the environment. Raises ConfigError."""
        self._dialect = DIALECTS[endpoint.wire_api]
        key = endpoint.api_key or NO_KEY
        self._headers: Any = {
            "Authorization": openai.Omit(),
            "x-include-thinking": "true",
            **self._dialect.headers(key),
        }
        base_url = endpoint.base_url
        if self._dialect is messages:  # its own SDK adds the version where it is missing
            base_url = f"{base_url.removesuffix('/v1')}/v1"
        self._client = openai.AsyncOpenAI(
            api_key=key,
            base_url=base_url,
            http_client=open_http(endpoint.base_url, timeout=TIMEOUT, follow_redirects=True),
        )
        self._client.organization = None
        self._client.project = None

    async def stream(self, request: ModelRequest) -> AsyncGenerator[WireEvent, None]:
        """The answer's events; the last one is Finished. Closing the generator, or cancelling the
        waiting task, ends the request at the endpoint. Raises EndpointError."""
        with _endpoint_errors():
            posting = self._client.post(
                self._dialect.PATH,
                body=self._dialect.request_body(request),
                options={"headers": self._headers},
                cast_to=object,
                stream=True,
                stream_cls=TolerantStream,
            )
            async with await posting as events:
                answer = self._dialect.Answer()
                async for event in events:
                    for made in fed(answer.feed, event):
                        yield made
                for made in answer.finish():
                    yield made

    async def close(self) -> None:
        await self._client.close()


class TolerantStream(openai.AsyncStream[object]):
    """A stream that skips events that are not JSON."""

    async def _iter_events(self) -> AsyncIterator[Any]:
        async for event in super()._iter_events():
            if is_readable(event.data):
                yield event


def is_readable(data: str) -> bool:
    if data.startswith(END) or not data.strip():
        return True
    try:
        is_object = isinstance(json.loads(data), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        log.warning("skipped a malformed event: %.*s", SHOWN_CHARACTERS, data)
    return is_object


def fed(feed: Callable[[JsonObject], list[WireEvent]], event: object) -> list[WireEvent]:
    """The wire events of one event; none where its fields have other types than the API's."""
    if not isinstance(event, dict):
        log.warning("skipped an event that is no object")
        return []
    try:
        return feed(JsonObject(event))
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        shown = json.dumps(event)[:SHOWN_CHARACTERS]
        log.warning("skipped a malformed event (%s): %s", error, shown)
        return []


@contextlib.contextmanager
def _endpoint_errors() -> Iterator[None]:
    try:
        yield
    except openai.APITimeoutError as error:
        raise EndpointError("it did not answer in time") from error
    except openai.APIConnectionError as error:
        raise EndpointError(f"it cannot be reached: {error.__cause__ or error}") from error
    except openai.APIError as error:
        # Without a status the stream itself has the error, or it is no stream of this API; a
        # refusal of the request's content has the status of the same refusal in a body.
        status = getattr(error, "status_code", 400)
        message, code = _message_and_code(error.body)
        raise EndpointError(message or error.message, status=status, code=code) from error
    except (httpx2.HTTPError, ValueError) as error:
        raise EndpointError(f"its answer broke off: {error or type(error).__name__}") from error


def _message_and_code(body: object) -> tuple[str | None, str | None]:
    """OpenAI's code; for the messages API helexa's code in the details, or its type."""
    error = body.get("error", body) if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return (error if isinstance(error, str) else None), None
    message, details, code = error.get("message"), error.get("details"), error.get("code")
    if isinstance(details, dict):
        code = code or details.get("code")
    code = code or error.get("type")
    return (
        message if isinstance(message, str) else None,
        code if isinstance(code, str) else None,
    )
