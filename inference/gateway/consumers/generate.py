"""Answering a request for text: parse, place, submit, and encode what comes back.

    parse ─▶ catalogue ─▶ placer ─▶ Submit ─▶ events ─▶ encoder ─▶ frames

The same for every dialect and for both kinds of answer: a dialect gives a parser and two encoders.
A stream that has to wait is started after ``STREAM_GRACE_S``, so that early refusals keep their
status and later ones become the stream's last event.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from inference.gateway.consumers.streaming import STREAM_GRACE_S, StreamingConsumer
from inference.gateway.gateway import Gateway
from inference.gateway.request.run import run_request
from inference.protocol.events import ChoiceFinished, Event, Finished
from inference.wire.dialect import (
    Encoder,
    ErrorDialect,
    Parse,
    ParsedRequest,
    PartsEncoder,
)
from inference.wire.openai import errors as openai_errors


class GenerationConsumer(StreamingConsumer):
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

    async def answer(self, body: bytes) -> None:
        await self._generate(await self.read(self._parse, body))

    async def _generate(self, request: ParsedRequest) -> None:
        if request.stream:
            self._keep_alive_from(STREAM_GRACE_S)
        try:
            async with run_request(
                self.gateway, self.call, request.generation, abort=self.abort
            ) as stream:
                encoder = self._encoder(request)
                while not self._has_finished:
                    await self._forward(await stream.next_events(), encoder, request)
        finally:
            self._stop_keep_alive()

    def _encoder(self, request: ParsedRequest) -> Encoder:
        make = request.stream_encoder if request.stream else request.body_encoder
        return make(request_id=self.request_id, clock=unix_time_s)

    async def _forward(self, events: list[Event], encoder: Encoder, request: ParsedRequest) -> None:
        """What a stream has of the events goes out as one send."""
        self._has_finished = isinstance(events[-1], Finished)
        if not request.stream:
            if parts := await _encoded(encoder, events):
                await self.respond_in_parts(200, parts)
        elif frames := await _frames(encoder, events):
            await self._send_frames(frames, last=self._has_finished)
            self._has_begun = True


async def _frames(encoder: Encoder, events: Sequence[Event]) -> bytes:
    """Other tasks run after each large part."""
    parts: list[bytes] = []
    for event in events:
        if not isinstance(event, ChoiceFinished) or not isinstance(encoder, PartsEncoder):
            parts.append(encoder.encode(event))
            continue
        for part in encoder.parts(event):
            parts.append(part)
            await asyncio.sleep(0)
    return b"".join(parts)


async def _encoded(encoder: Encoder, events: Sequence[Event]) -> list[bytes]:
    """Other tasks run after each part."""
    if not isinstance(encoder, PartsEncoder):
        return [body for event in events if (body := encoder.encode(event))]
    parts: list[bytes] = []
    for event in events:
        for part in encoder.parts(event):
            parts.append(part)
            await asyncio.sleep(0)
    return parts


def unix_time_s() -> int:
    return int(time.time())
