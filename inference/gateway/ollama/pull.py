"""POST /api/pull: a download to a neuron for a caller who may write the fleet, with its progress.

    parse ─▶ catalogue.start_pull ─▶ a line whenever it has moved on ─▶ offered ─▶ success
                     ▲                        │                └▶ the error
                     └── ended by another client who began it

A client that hangs up ends the download that it began. The bytes so far stay, and the next pull
resumes from there. Another client that waits for it starts it again.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import ClassVar

from inference.gateway.consumers.api_consumer import UNBUFFERED, ApiConsumer, Headers
from inference.gateway.gateway import Gateway
from inference.loading.sources.hub_sources import hub_schemes
from inference.protocol.events import Failure
from inference.wire.errors import RequestFailedError
from inference.wire.ollama import errors as ollama_errors
from inference.wire.ollama import pull as ollama_pull
from inference.wire.ollama.pull import PullState
from metering.actor import Actor, key_actor
from metering.principal import Scope

LOOK_EVERY_S = 0.5
LINE_EVERY_S = 10.0
JSON_LINES: Headers = [(b"content-type", b"application/x-ndjson"), *UNBUFFERED]


class OllamaPullConsumer(ApiConsumer):
    method = "POST"
    scope_needed: ClassVar[Scope | None] = Scope.FLEET_WRITE
    endpoint = "/api/pull"

    def __init__(self, *, gateway: Gateway) -> None:
        super().__init__(gateway=gateway, errors=ollama_errors)
        self._sent = b""

    async def answer(self, body: bytes) -> None:
        parse = partial(ollama_pull.parse, named_sources=hub_schemes())
        request = await self.parsed(parse, body)
        who = self.call.who
        actor = key_actor(who.key or who.account)
        while True:
            state = await self.gateway.catalogue.start_pull(request, actor)
            state = await self._follow(state, actor, streams=request.stream)
            if state.status != "cancelled" or state.is_ours:
                break
        _ensure_succeeded(state)
        if request.source is not None:
            await self.gateway.catalogue.offer_pulled(request, state, actor)
        line = ollama_pull.progress_line(state)
        if self._response_started:
            await self.send_body(line, last=True)
        else:
            await self.respond(200, line, type_=JSON_LINES[0][1] if request.stream else b"")

    async def _follow(self, state: PullState, actor: Actor, *, streams: bool) -> PullState:
        quiet_s = 0.0
        try:
            while not state.has_ended:
                line = ollama_pull.progress_line(state)
                if streams and (line != self._sent or quiet_s >= LINE_EVERY_S):
                    await self._send_line(line)
                    self._sent, quiet_s = line, 0.0
                await asyncio.sleep(LOOK_EVERY_S)
                quiet_s += LOOK_EVERY_S
                state = await self.gateway.catalogue.pull_state(state)
        except asyncio.CancelledError:
            if self._client_left and state.is_ours:
                self.gateway.spawn(self.gateway.catalogue.cancel_pull(state, actor))
            raise
        return state

    async def _send_line(self, line: bytes) -> None:
        if not self._response_started:
            await self.start_response(200, JSON_LINES)
        await self.send_body(line)


def _ensure_succeeded(state: PullState) -> None:
    if state.status != "succeeded":
        code = state.failure_code or state.status
        message = state.failure_message or f"The download {state.status}"
        raise RequestFailedError(Failure(code=code, message=message))
