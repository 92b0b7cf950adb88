"""Answering a request for text: parse, place, submit, and encode what comes back.

    parse ─▶ catalogue ─▶ placer ─▶ Submit ─▶ events ─▶ encoder ─▶ frames

The same for every dialect and for both kinds of answer: a dialect gives a parser and two encoders.
A stream that has to wait is started after ``STREAM_GRACE_S``, so that early refusals keep their
status and later ones become the stream's last event.
"""

from __future__ import annotations

import asyncio
import time

from inference.gateway.consumers import ApiConsumer, Headers
from inference.gateway.gateway import Gateway
from inference.gateway.keep_alive import QuietTimer
from inference.gateway.running import run_request
from inference.protocol.events import Event, Finished
from inference.wire import openai_errors
from inference.wire.dialect import (
    WAITING_COMMENT,
    Encoder,
    ErrorDialect,
    Parse,
    ParsedRequest,
)

STREAM_GRACE_S = 2.0
KEEP_ALIVE_S = 10.0
STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class GenerationConsumer(ApiConsumer):
    """``parse`` is a dialect's parser."""

    method = "POST"

    def __init__(
        self,
        *,
        gateway: Gateway,
        parse: Parse,
        endpoint: str,
        errors: ErrorDialect = openai_errors,
    ) -> None:
        super().__init__(gateway=gateway, errors=errors, endpoint=endpoint)
        self._parse = parse
        self._has_finished = False
        """The last event has come."""
        self._quiet: QuietTimer | None = None
        self._has_begun = False
        """Whether the client has been sent an event."""
        self._sending = asyncio.Lock()

    async def answer(self, body: bytes) -> None:
        await self._generate(self.parsed(self._parse, body))

    async def _generate(self, request: ParsedRequest) -> None:
        if request.stream:
            self._quiet = QuietTimer(self._keep_alive, first_s=STREAM_GRACE_S, then_s=KEEP_ALIVE_S)
        try:
            async with run_request(
                self.gateway, self.call, request.generation, abort=self.abort
            ) as stream:
                encoder = self._encoder(request)
                while not self._has_finished:
                    await self._forward(await stream.next_events(), encoder, request)
        finally:
            if self._quiet is not None:
                self._quiet.stop()

    def _encoder(self, request: ParsedRequest) -> Encoder:
        make = request.stream_encoder if request.stream else request.body_encoder
        return make(request_id=self.request_id, clock=unix_time_s)

    async def _forward(self, events: list[Event], encoder: Encoder, request: ParsedRequest) -> None:
        """Everything that is there goes out as one send."""
        frames = b"".join([encoder.encode(event) for event in events])
        self._has_finished = isinstance(events[-1], Finished)
        if not frames:
            return
        if request.stream:
            await self._send_frames(frames, last=self._has_finished)
            self._has_begun = True
        else:
            await self.respond(200, frames)

    async def _send_frames(self, frames: bytes, *, last: bool) -> None:
        """One at a time: a keep-alive may start the response while the first answer arrives."""
        async with self._sending:
            if self._response_ended:
                return
            if self._quiet is not None:
                self._quiet.touch()
            if not self._response_started:
                await self.start_response(200, STREAM_HEADERS)
            await self.send_body(frames, last=last)

    async def _keep_alive(self) -> None:
        frame = self.errors.KEEP_ALIVE_FRAME if self._has_begun else WAITING_COMMENT
        await self._send_frames(frame, last=False)


def unix_time_s() -> int:
    return int(time.time())
