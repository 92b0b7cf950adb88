"""Responses over one WebSocket: turns in sequence, each continuing the one before.

The last turn's items are kept with the connection, so a chain needs nothing stored. A turn that
fails forgets the turn that it continued: its client sends the whole conversation again.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from channels.exceptions import StopConsumer

from inference.gateway.consumers.api_consumer import AbortableConsumer
from inference.gateway.consumers.generate import unix_time_s
from inference.gateway.gateway import Gateway
from inference.gateway.request.attempt import until_ended
from inference.gateway.request.identify import REQUEST_ID, ensure_scope
from inference.gateway.request.outcome import Call
from inference.gateway.request.run import run_request
from inference.gateway.response_store import ResponseStore, read_back
from inference.gateway.server.unhandled import REFUSED_HANDSHAKE
from inference.protocol.events import ChoiceFinished, Finished
from inference.request_ids import new_request_id
from inference.wire.errors import (
    ApiError,
    InternalError,
    InvalidRequestError,
    RequestTooLargeError,
    shutting_down,
)
from inference.wire.responses.events import ResponseStreamEncoder
from inference.wire.responses.input import InputItem
from inference.wire.responses.output import response_id, without_logprobs
from inference.wire.responses.request import (
    ResponsesRequest,
    error_message,
    messages_of,
    parse_message,
)
from metering.ledger.entries import FINISHED
from metering.principal import Principal, Scope

logger = logging.getLogger(__name__)

ENDPOINT = "/v1/responses (socket)"
MAX_WAITING = 16
"""A client that sends more during a turn does not wait for answers."""
TOO_MANY = 1008
TOO_BIG = 1009
GOING_AWAY = 1001


@dataclass(slots=True)
class Turn:
    call: Call
    previous_response_id: str | None = None
    request: ResponsesRequest | None = None
    encoder: ResponseStreamEncoder | None = None


class ResponseSocket(AbortableConsumer):
    scope: dict[str, Any]

    def __init__(self, *, gateway: Gateway, store: ResponseStore) -> None:
        super().__init__()
        self.gateway = gateway
        self.store = store
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue(MAX_WAITING)
        self._waiting_bytes = 0
        self._worker: asyncio.Task[None] | None = None
        self._kept_id: str | None = None
        self._kept_items: list[InputItem] = []
        self._connected: Principal | None = None

    def abort(self) -> None:
        logger.warning("a socket is given up: what it is sent is not taken")
        super().abort()

    def stop_working(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.cancel()

    async def dispatch(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "websocket.connect":
                await self._connect()
            case "websocket.receive":
                await self._receive(message)
            case "websocket.disconnect":
                raise StopConsumer

    async def _connect(self) -> None:
        self.gateway.ensure_started()
        try:
            self._connected = await self.gateway.identifier.principal_of(self.scope["headers"])
            ensure_scope(self._connected, Scope.INFERENCE)
        except ApiError as error:
            self._record_refusal(error, REFUSED_HANDSHAKE, self.scope.get(REQUEST_ID, ""))
            await self.send({"type": "websocket.close"})
            return
        await self.send({"type": "websocket.accept"})
        self._worker = asyncio.create_task(self._work(), name="gateway response socket")

    async def _receive(self, message: dict[str, Any]) -> None:
        text = message.get("text")
        given = message["bytes"] if text is None else text.encode()
        limit_bytes = self.gateway.config.max_body_bytes
        if len(given) > limit_bytes:
            await self._close(RequestTooLargeError(limit_bytes), TOO_BIG)
        elif self._waiting_bytes + len(given) > limit_bytes:
            words = f"The messages that wait take over {limit_bytes:,} bytes."
            await self._close(InvalidRequestError(words, param=None), TOO_BIG)
        elif self._waiting.full():
            words = f"More than {MAX_WAITING} messages wait."
            await self._close(InvalidRequestError(words, param=None), TOO_MANY)
        else:
            self._waiting.put_nowait(given)
            self._waiting_bytes += len(given)

    async def _close(self, error: ApiError, code: int) -> None:
        self._record_refusal(error, error.status)
        await self._send_error(error)
        await self.send({"type": "websocket.close", "code": code})

    def _record_refusal(self, error: ApiError, status: int, request_id: str = "") -> None:
        call = self._open_call(request_id)
        if self._connected is not None:
            call.identify(self._connected, self.scope["headers"])
        call.fail(error)
        call.status = status
        call.close()

    def _open_call(self, request_id: str = "") -> Call:
        return self.gateway.open_call(
            request_id=request_id or new_request_id(),
            endpoint=ENDPOINT,
            headers=self.scope["headers"],
        )

    async def _work(self) -> None:
        while True:
            message = await self._waiting.get()
            self._waiting_bytes -= len(message)
            if self.gateway.draining:
                await self._close(shutting_down(), GOING_AWAY)
                return
            turn = Turn(self._open_call())
            running = self.gateway.spawn(self._run(turn, message))
            running.add_done_callback(lambda _, call=turn.call: call.close())  # type: ignore[misc]
            try:
                await running
            except Exception:
                logger.exception("a socket's turn cannot be ended")
                self.abort()
                return

    async def _run(self, turn: Turn, message: bytes) -> None:
        try:
            await self._run_within_bounds(turn, message)
            return
        except ApiError as refused:
            error = refused
        except asyncio.CancelledError:
            if self._worker is None:  # the client has left
                raise
            error = shutting_down()
        except Exception:
            logger.exception("request %s failed", turn.call.request_id)
            error = InternalError()
        if self._kept_id == turn.previous_response_id:
            self._kept_id, self._kept_items = None, []
        turn.call.fail(error)
        if turn.request is None or turn.encoder is None or turn.encoder.response is None:
            await self._send_error(error)
            return
        frames = turn.encoder.failed(error, names_error=False)
        await self.store.save_failed(turn.request, turn.encoder, turn.call)
        await self._send_frames(frames)

    async def _run_within_bounds(self, turn: Turn, message: bytes) -> None:
        """Looks the caller up for each turn: a key may have been revoked since the last."""
        bounds, num_bytes = self.gateway.bounds, 0
        bounds.open_request()
        try:
            bounds.take_body(len(message))
            num_bytes = len(message)
            headers = self.scope["headers"]
            principal = await self.gateway.identifier.identify(headers, scope=Scope.INFERENCE)
            turn.call.identify(principal, headers)
            await self._answer(turn, message)
        finally:
            bounds.close_request(num_bytes)

    async def _answer(self, turn: Turn, message: bytes) -> None:
        call = turn.call
        call.capture_request(message)
        parse = partial(parse_message, message)
        asked = await self.gateway.images.parsed(parse, len(message))
        if asked.response.store:
            await self.store.ensure_room(call.who)
        previous = turn.previous_response_id = asked.response.previous_response_id
        if previous is not None and previous == self._kept_id:
            history = self._kept_items
        else:
            history = await self.store.history(previous, call.who)
        request = turn.request = await self.store.continued(asked.response, call.who, history)
        response = await self._generate(turn, request, generates=asked.generates)
        call.outcome = FINISHED
        output = read_back(without_logprobs(response["output"]))
        self._kept_items = [*history, *request.items, *output]
        self._kept_id = response_id(call.request_id)

    async def _generate(
        self, turn: Turn, request: ResponsesRequest, *, generates: bool
    ) -> dict[str, Any]:
        call, generation = turn.call, request.generation
        if not generates:  # only the prompt is computed
            sampling = msgspec.structs.replace(generation.sampling, max_tokens=0)
            generation = msgspec.structs.replace(generation, sampling=sampling)
        async with run_request(self.gateway, call, generation, abort=self.abort) as stream:
            encoder = turn.encoder = request.stream_encoder(
                request_id=call.request_id, clock=unix_time_s
            )
            async for events in until_ended(stream):
                frames = b""
                for event in events:
                    if isinstance(event, ChoiceFinished) and not generates:
                        continue
                    if isinstance(event, Finished):
                        await self.store.save_finished(request, encoder, event, call)
                    frames += encoder.encode(event)
                if frames:
                    call.capture_answer(frames)
                    await self._send_frames(frames)
        assert encoder.response is not None
        return encoder.response

    async def _send_error(self, error: ApiError) -> None:
        await self.send({"type": "websocket.send", "text": error_message(error)})

    async def _send_frames(self, frames: bytes) -> None:
        for text in messages_of(frames):
            await self.send({"type": "websocket.send", "text": text})
