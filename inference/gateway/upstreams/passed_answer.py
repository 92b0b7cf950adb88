"""One answer of an upstream whose bytes are passed on as they come.

    send ─▶ status ─▶ a type that an answer has ─▶ first part ─▶ parts ─▶ end
                                                     │ from here on it is charged
                                                     └ a small JSON body is read whole before

Time is bounded until the first part and between two, bytes as in other answers. Nothing is read
ahead: a slow client slows its upstream.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol

import orjson

from inference.gateway.request.outcome import Call
from inference.gateway.upstreams.answer import MAX_ANSWER_BYTES, check_status, faults
from inference.gateway.upstreams.links import UpstreamLink, UpstreamPlace
from inference.protocol.events import Failure, Usage
from inference.wire.errors import RequestFailedError
from inference.wire.openai.passed.request import (
    EVENTS,
    JSON,
    PassedRequest,
    SecretGuard,
    UnitsReader,
)
from inference.wire.upstream.answer_events import UpstreamErrorObject, UpstreamFaultError
from inference.wire.upstream.refusals import FAILED

if TYPE_CHECKING:
    from inference.gateway.upstreams.transport import UpstreamResponse

HELD_BYTES = 64 * 1024
TYPES = re.compile(
    r"(application/json|application/octet-stream|application/x-subrip|text/plain|text/vtt"
    r"|text/event-stream|audio/[\w.+-]{1,100})(\s*;[\x20-\x7e]{0,200})?"
)
"""The types of speech, transcripts, images and verdicts. A page of HTML is no answer, and would run
as one of this server's."""
BINARY = "application/octet-stream"


class Reply(Protocol):
    async def respond(self, status: int, body: bytes, *, type_: bytes = b"") -> None: ...
    async def begin_body(self, status: int, *, type_: bytes = b"") -> None: ...
    async def begin_events(self, *, type_: bytes) -> None: ...
    async def send_body(self, body: bytes, *, last: bool = False) -> None: ...


class PassedAnswer:
    def __init__(
        self,
        link: UpstreamLink,
        call: Call,
        request: PassedRequest,
        reply: Reply,
        place: UpstreamPlace,
    ) -> None:
        self._link = link
        self._call = call
        self._request = request
        self._reply = reply
        self._place = place
        self._guard = SecretGuard(link.secret)
        self._units: UnitsReader | None = None
        self.has_begun = False
        self.is_whole = False
        self.num_bytes = 0

    @property
    def reported(self) -> tuple[int | None, Usage | None]:
        """The units and tokens that the whole answer reports."""
        if self._units is None or not self.is_whole:
            return None, None
        return self._units.units, self._units.tokens

    async def pass_on(
        self,
        content: bytes | AsyncIterator[bytes],
        headers: Mapping[str, str],
        *,
        deadline_s: float,
    ) -> None:
        """Raises ``RequestFailedError``."""
        with faults(self._link, lambda: self.has_begun):
            entry = self._link.entry
            until_s = min(
                deadline_s, asyncio.get_running_loop().time() + entry.first_token_timeout_s
            )
            url = entry.url + self._request.endpoint.path.removeprefix("/v1")
            response = await self._link.post(
                url, content, {"accept": "*/*", **headers}, until_s=until_s
            )
            try:
                async with asyncio.timeout_at(until_s):
                    await check_status(self._link, response)
                type_ = _type_of(response)
                async with aclosing(self._parts(response, until_s)) as parts:
                    await self._pass_parts(parts, type_)
            finally:
                response.close()
        if self._units is not None and self._units.has_failed:
            message = f"The upstream {entry.name} failed in its answer."
            raise RequestFailedError(Failure(code=FAILED, message=message))

    async def _parts(self, response: UpstreamResponse, until_s: float) -> AsyncGenerator[bytes]:
        loop = asyncio.get_running_loop()
        left_bytes = MAX_ANSWER_BYTES
        while (part := await response.next_part(until_s)) is not None:
            left_bytes -= len(part)
            if left_bytes < 0:
                raise UpstreamFaultError(f"more than {MAX_ANSWER_BYTES:,} bytes")
            yield part
            until_s = loop.time() + self._link.entry.token_timeout_s

    async def _pass_parts(self, parts: AsyncGenerator[bytes], type_: str) -> None:
        kind = type_.partition(";")[0].strip().lower()
        self._units = UnitsReader(self._request.endpoint.task, kind)
        held, has_ended = await _held(parts, HELD_BYTES if kind == JSON else 0)
        if has_ended and kind == JSON:
            _check_object(held)
        first = self._checked(held)
        self._begin()
        if has_ended:
            self.is_whole = True
            await self._reply.respond(200, first + self._guard.rest(), type_=type_.encode())
            return
        if kind == EVENTS:
            await self._reply.begin_events(type_=type_.encode())
        else:
            await self._reply.begin_body(200, type_=type_.encode())
        await self._send(first)
        async for part in parts:
            await self._send(self._checked(part))
        self.is_whole = True
        await self._reply.send_body(self._guard.rest(), last=True)

    def _begin(self) -> None:
        """It is charged from now on, and no other target answers it."""
        counter = self._call.usage_counter
        assert counter is not None, "an attempt that nothing counts"
        self.has_begun = True
        self._call.may_move = False
        counter.begun_s = counter.first_token_s = time.monotonic()
        self._place.answered()

    def _checked(self, part: bytes) -> bytes:
        assert self._units is not None, "an answer without a type"
        self._units.feed(part)
        self.num_bytes += len(part)
        passed = self._guard.feed(part)
        if passed is None:
            raise UpstreamFaultError("the key that it was sent")
        return passed

    async def _send(self, part: bytes) -> None:
        if part:
            await self._reply.send_body(part)


def _type_of(response: UpstreamResponse) -> str:
    encoding = response.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise UpstreamFaultError("a compressed body")
    type_: str = response.headers.get("content-type", BINARY).strip()
    if not TYPES.fullmatch(type_.lower()):
        raise UpstreamFaultError("something else than audio, text or JSON")
    return type_


async def _held(parts: AsyncGenerator[bytes], max_bytes: int) -> tuple[bytes, bool]:
    held = bytearray()
    async for part in parts:
        held += part
        if len(held) > max_bytes:
            return bytes(held), False
    return bytes(held), True


def _check_object(body: bytes) -> None:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise UpstreamFaultError("something that is no JSON") from None
    if isinstance(found, dict) and found.get("error"):
        raise UpstreamErrorObject(found["error"])
