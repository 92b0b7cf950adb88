"""The openai SDK's client for an endpoint, its requests, and its exceptions as ours."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import openai

from helexa_acp.config import Endpoint
from helexa_acp.errors import EndpointError
from helexa_acp.wire.base import HEADERS, NO_KEY, sdk_http
from helexa_acp.wire.tolerant import is_readable


def open_client(endpoint: Endpoint) -> openai.AsyncOpenAI:
    """``organization`` and ``project`` are given, so that the SDK does not take them from the
    environment of another endpoint; an Omit header drops them. Raises ConfigError."""
    client = openai.AsyncOpenAI(
        api_key=endpoint.api_key or NO_KEY,
        base_url=endpoint.base_url,
        http_client=sdk_http(endpoint),
        default_headers=HEADERS,
    )
    client.organization = None
    client.project = None
    return client


class TolerantStream(openai.AsyncStream[object]):
    """A stream that skips events that are not JSON."""

    async def _iter_events(self) -> AsyncIterator[Any]:
        async for event in super()._iter_events():
            if is_readable(event.data):
                yield event


async def post(
    client: openai.AsyncOpenAI, path: str, body: dict[str, Any]
) -> openai.AsyncStream[object]:
    """The stream of events, as they are in JSON."""
    return await client.post(
        path, body=body, cast_to=object, stream=True, stream_cls=TolerantStream
    )


@contextlib.contextmanager
def openai_errors() -> Iterator[None]:
    try:
        yield
    except openai.APIStatusError as error:
        raise EndpointError(
            _message(error), status=error.status_code, code=_code(error.code)
        ) from error
    except openai.APITimeoutError as error:
        raise EndpointError("it did not answer in time") from error
    except openai.APIConnectionError as error:
        raise EndpointError(f"it cannot be reached: {error.__cause__ or error}") from error
    except openai.APIError as error:
        # The stream itself has the error, or it is no stream of this API. It has no status then; a
        # refusal of the request's content has the status of the same refusal in a body.
        raise EndpointError(_message(error), status=400, code=_code(error.code)) from error
    except (httpx2.HTTPError, ValueError) as error:
        raise EndpointError(f"its answer broke off: {error or type(error).__name__}") from error


def _message(error: openai.APIError) -> str:
    body = error.body
    if isinstance(body, dict):
        inner = body.get("error", body)
        message = inner.get("message") if isinstance(inner, dict) else inner
        if isinstance(message, str) and message:
            return message
    return error.message


def _code(code: object) -> str | None:
    return code if isinstance(code, str) else None
