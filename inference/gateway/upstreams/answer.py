"""One answer of an upstream as events: sends the request, reads and ends the answer.

Time is bounded until the first token and between two, bytes by the answer's tokens. Nothing is read
ahead: a slow client slows its upstream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fleet.upstream_http import unversioned
from inference.gateway.upstreams.links import UpstreamLink
from inference.protocol.events import Event
from inference.wire.errors import RequestFailedError, upstream_failed
from inference.wire.failures import (
    UPSTREAM_FAILED,
    UPSTREAM_UNAVAILABLE,
    upstream_failure,
    upstream_failure_in_stream,
)
from inference.wire.upstream.answer_events import (
    AnswerEvents,
    FrameError,
    UpstreamErrorObject,
    UpstreamFaultError,
)
from inference.wire.upstream.exchanges import JSON, Exchange

if TYPE_CHECKING:
    from inference.gateway.upstreams.connection import UpstreamConnection


OK, FIRST_ERROR = 200, 400
MAX_ERROR_BYTES = 64 * 1024


@contextmanager
def faults(link: UpstreamLink, has_begun: Callable[[], bool]) -> Iterator[None]:
    """Before the first token the upstream is unavailable: a retry may succeed."""
    import httpx2

    name = link.entry.name
    try:
        yield
    except TimeoutError:
        raise _failed(name, "gave no token within the time allowed", has_begun()) from None
    except (UpstreamFaultError, FrameError) as error:
        raise _failed(name, f"answered with {error}", True) from None
    except UpstreamErrorObject as error:
        failure = upstream_failure_in_stream(name, error.error, secret=link.secret)
        raise RequestFailedError(failure) from None
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError):
        raise _failed(name, "cannot be reached", False) from None
    except httpx2.HTTPError:
        raise _failed(name, "broke off", has_begun()) from None


async def check_status(link: UpstreamLink, response: UpstreamConnection) -> None:
    status = response.status
    if status == OK:
        return
    if status < FIRST_ERROR:
        raise UpstreamFaultError(f"status {status}, which is not followed")
    body = await read_whole(response, MAX_ERROR_BYTES, cuts=True)
    raise RequestFailedError(
        upstream_failure(
            link.entry.name,
            status,
            body,
            retry_after=response.headers.get("retry-after"),
            date=response.headers.get("date"),
            secret=link.secret,
        )
    )


async def read_whole(response: UpstreamConnection, max_bytes: int, *, cuts: bool = False) -> bytes:
    content = bytearray()
    async for part in response.parts():
        content += part
        if len(content) > max_bytes:
            if cuts:
                break
            raise UpstreamFaultError(f"more than {max_bytes:,} bytes")
    return bytes(content[:max_bytes])


def _failed(name: str, what: str, has_begun: bool) -> RequestFailedError:
    code = UPSTREAM_FAILED if has_begun else UPSTREAM_UNAVAILABLE
    return upstream_failed(f"The upstream {name} {what}.", code)


MAX_BODY_BYTES = 64 * 1024 * 1024
BYTES_OF_NO_TOKEN = 8 * 1024 * 1024
BYTES_A_TOKEN = 8 * 1024
MAX_ANSWER_BYTES = 512 * 1024 * 1024
TAIL_TIMEOUT_S = 5.0


class UpstreamAnswer:
    def __init__(
        self,
        link: UpstreamLink,
        exchange: Exchange,
        answer: AnswerEvents,
        *,
        until_s: float,
        max_output_tokens: int,
        headers: Mapping[str, str],
    ) -> None:
        self._link = link
        self._exchange = exchange
        self._answer = answer
        self._headers = headers
        self._reader = exchange.reader_of(answer)
        self._frames = exchange.frames()
        now_s = asyncio.get_running_loop().time()
        self._left_s = min(max(0.0, until_s - now_s), link.entry.first_token_timeout_s)
        self._left_bytes = min(
            MAX_ANSWER_BYTES, BYTES_OF_NO_TOKEN + BYTES_A_TOKEN * max_output_tokens
        )
        self._response: UpstreamConnection | None = None
        self._fault: Exception | None = None

    async def next_events(self) -> list[Event]:
        with faults(self._link, lambda: self._answer.is_accepted):
            if self._fault is not None:
                raise self._fault
            if self._response is not None:
                return await self._streamed(self._response)
            response = self._response = await self._sent()
            content_type = response.headers.get("content-type", "")
            is_streamed = self._exchange.content_type != JSON
            if is_streamed and self._exchange.content_type in content_type.lower():
                return await self._streamed(response)
            async with asyncio.timeout(self._left_s):
                body = await read_whole(response, MAX_BODY_BYTES)
            return self._reader.read(body) + self._ended()

    def close(self) -> None:
        response, self._response = self._response, None
        if response is None:
            return
        if self._answer.is_ended:
            self._link.free_drained(response)
        else:
            self._link.free(response)

    async def _sent(self) -> UpstreamConnection:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._left_s
        headers = {
            "content-type": "application/json",
            "accept": self._exchange.content_type,
            **self._headers,
        }
        exchange = self._exchange
        url = self._link.entry.url
        url = (unversioned(url) if exchange.is_unversioned else url) + exchange.path
        response = await self._link.post(url, exchange.body, headers, until_s=deadline_s)
        self._response = response
        if response.status != OK:
            async with asyncio.timeout_at(deadline_s):
                await check_status(self._link, response)
        self._left_s = deadline_s - loop.time()
        return response

    async def _streamed(self, response: UpstreamConnection) -> list[Event]:
        """Comments are no tokens. Only waiting for the upstream counts, not the client's time."""
        while not self._answer.is_ended:
            part = await self._next_part(response)
            if part is None:
                break
            self._count(len(part))
            events = self._events_of(part)
            response.gathers = self._answer.has_begun
            if events:
                if self._answer.has_begun:
                    pause_s = self._link.entry.token_timeout_s
                    self._left_s = TAIL_TIMEOUT_S if self._answer.has_finished else pause_s
                return events
            if self._fault is not None:
                raise self._fault
        return self._ended()

    def _events_of(self, part: bytes) -> list[Event]:
        """Events before a fault reach the client, and are charged."""
        events: list[Event] = []
        try:
            for frame in self._frames.feed(part):
                if self._answer.is_ended:
                    break
                events += self._reader.read(frame)
        except (UpstreamFaultError, UpstreamErrorObject, FrameError) as fault:
            self._fault = fault
            events += self._answer.take()
        return events

    def _ended(self) -> list[Event]:
        self._answer.end()
        return self._answer.take()

    async def _next_part(self, response: UpstreamConnection) -> bytes | None:
        import httpx2

        loop = asyncio.get_running_loop()
        since_s = loop.time()
        try:
            part = await response.next_part(since_s + self._left_s)
        except (TimeoutError, httpx2.HTTPError):
            if self._answer.has_finished:
                return None  # only its usage is missing
            raise
        self._left_s -= loop.time() - since_s
        return part

    def _count(self, num_bytes: int) -> None:
        self._left_bytes -= num_bytes
        if self._left_bytes < 0:
            raise UpstreamFaultError("more bytes than its tokens can have")
