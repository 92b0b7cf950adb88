"""Responses over one WebSocket: turns in sequence, each continuing the one before.

    message ─▶ queue ─▶ parse ─▶ continued ─▶ run_request ─▶ events ─▶ messages
                                    ▲                           │
                                    └──── last turn's items ◀───┘

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
from inference.gateway.responses.store import ResponseStore, read_back
from inference.gateway.server import bodies
from inference.gateway.server.unhandled import REFUSED_HANDSHAKE
from inference.protocol.events import ChoiceFinished, Finished
from inference.protocol.generation import GenerationRequest
from inference.request_ids import new_request_id
from inference.wire.errors import (
    ApiError,
    InternalError,
    InvalidRequestError,
    RequestTooLargeError,
    shutting_down,
)
from inference.wire.openai.responses.events import ResponseStreamEncoder
from inference.wire.openai.responses.input import InputItem
from inference.wire.openai.responses.output import response_id, without_logprobs
from inference.wire.openai.responses.request import ResponsesRequest
from inference.wire.openai.responses.websocket import error_message, messages_of, parse_message
from metering.ledger.entries import FINISHED
from metering.principal import Principal, Scope

logger = logging.getLogger(__name__)

ENDPOINT = "/v1/responses (socket)"
MAX_WAITING = 16
"""Messages queued during a turn. A client that sends more does not wait for answers; together they
may be as large as one."""
TOO_MANY = 1008
TOO_BIG = 1009
GOING_AWAY = 1001


class ResponseSocket(AbortableConsumer):
    scope: dict[str, Any]

    def __init__(self, *, gateway: Gateway, store: ResponseStore) -> None:
        super().__init__()
        self.gateway = gateway
        self.store = store
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue(MAX_WAITING)
        self._waiting_bytes = 0
        self._worker: asyncio.Task[None] | None = None
        self._kept: KeptTurn | None = None
        self._connected: Principal | None = None

    def abort(self) -> None:
        logger.warning("a socket is given up: what it is sent is not taken")
        super().abort()

    async def dispatch(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "websocket.connect":
                await self._connect()
            case "websocket.receive":
                await self._receive(message)
            case bodies.MESSAGE_TOO_LARGE:
                error = RequestTooLargeError(self.gateway.config.max_body_bytes)
                self._record_refusal(error, error.status)
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
        if (refusal := self._refusal_of(len(given))) is not None:
            await self._close(*refusal)
            return
        self._waiting.put_nowait(given)
        self._waiting_bytes += len(given)

    def _refusal_of(self, num_bytes: int) -> tuple[ApiError, int] | None:
        limit_bytes = self.gateway.config.max_body_bytes
        if num_bytes > limit_bytes:
            return RequestTooLargeError(limit_bytes), TOO_BIG
        if self._waiting_bytes + num_bytes > limit_bytes:
            message = f"The messages that wait take over {limit_bytes:,} bytes."
            return InvalidRequestError(message, param=None), TOO_BIG
        if self._waiting.full():
            message = f"More than {MAX_WAITING} messages wait."
            return InvalidRequestError(message, param=None), TOO_MANY
        return None

    async def _work(self) -> None:
        while True:
            message = await self._waiting.get()
            self._waiting_bytes -= len(message)
            if self.gateway.draining:
                await self._close(shutting_down(), GOING_AWAY)
                return
            call = self._open_call()
            turn = self.gateway.spawn(self._turn(call, message))
            turn.add_done_callback(lambda _, call=call: call.close())  # type: ignore[misc]
            try:
                await turn
            except Exception:
                logger.exception("a socket's turn cannot be ended")
                self.abort()
                return

    async def _turn(self, call: Call, message: bytes) -> None:
        bounds = self.gateway.bounds
        num_bytes = 0
        try:
            bounds.open_request()
            try:
                bounds.take_body(len(message))
                num_bytes = len(message)
                await self._run(call, message)
            finally:
                bounds.close_request(num_bytes)
        except ApiError as error:
            call.fail(error)
            await self._send_error(error)

    def _open_call(self, request_id: str = "") -> Call:
        return self.gateway.open_call(
            request_id=request_id or new_request_id(),
            endpoint=ENDPOINT,
            headers=self.scope["headers"],
        )

    async def _run(self, call: Call, message: bytes) -> None:
        """The caller is looked up for each turn: a key may have been revoked since the last. Raises
        ``ApiError`` where no turn exists yet that could end."""
        headers = self.scope["headers"]
        principal = await self.gateway.identifier.identify(headers, scope=Scope.INFERENCE)
        call.identify(principal, headers)
        turn = ResponseTurn(self, call)
        kept, self._kept = self._kept, None
        try:
            self._kept = await turn.run(message, kept)
            return
        except ApiError as error:
            await self._refuse(turn, error)
        except asyncio.CancelledError:
            if self._worker is None:  # the client has left
                raise
            await self._refuse(turn, shutting_down())
        except Exception:
            logger.exception("request %s failed", turn.call.request_id)
            await self._refuse(turn, InternalError())
        # Only the turn that the failed one continued is forgotten.
        if kept is not None and kept.response_id != turn.previous_response_id:
            self._kept = kept

    async def _refuse(self, turn: ResponseTurn, error: ApiError) -> None:
        turn.call.fail(error)
        if frames := await turn.failed(error):
            await self.send_frames(frames)
        else:
            await self._send_error(error)

    async def _send_error(self, error: ApiError) -> None:
        await self.send({"type": "websocket.send", "text": error_message(error)})

    async def send_frames(self, frames: bytes) -> None:
        for text in messages_of(frames):
            await self.send({"type": "websocket.send", "text": text})

    async def _close(self, error: ApiError, code: int) -> None:
        self._record_refusal(error, error.status)
        await self._send_error(error)
        await self.send({"type": "websocket.close", "code": code})

    def _record_refusal(self, error: ApiError, status: int, request_id: str = "") -> None:
        call = self._identified_call(request_id)
        call.fail(error)
        call.status = status
        call.close()

    def _identified_call(self, request_id: str = "") -> Call:
        call = self._open_call(request_id)
        if self._connected is not None:
            call.identify(self._connected, self.scope["headers"])
        return call

    def stop_working(self) -> None:
        """Messages without a turn end with the socket."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.cancel()
        while not self._waiting.empty():
            self._waiting.get_nowait()
            if self.gateway.draining:
                self._record_refusal(shutting_down(), shutting_down().status)
            else:
                self._identified_call().close()


@dataclass(frozen=True, slots=True)
class KeptTurn:
    response_id: str
    items: list[InputItem]


class ResponseTurn:
    def __init__(self, socket: ResponseSocket, call: Call) -> None:
        self.call = call
        self.previous_response_id: str | None = None
        self._socket = socket
        self._store = socket.store
        self._request: ResponsesRequest | None = None
        self._encoder: ResponseStreamEncoder | None = None

    async def run(self, message: bytes, kept: KeptTurn | None) -> KeptTurn:
        """Raises ``ApiError``."""
        call, store = self.call, self._store
        call.capture_request(message)
        images = self._socket.gateway.images
        asked = await images.parsed(partial(parse_message, message), len(message))
        if asked.response.store:
            await store.ensure_room(call.who)
        previous = self.previous_response_id = asked.response.previous_response_id
        if kept is not None and kept.response_id == previous:
            history = kept.items
        else:
            history = await store.history(previous, call.who)
        request = self._request = await store.continued(asked.response, call.who, history)
        response = await self._answer(request, generates=asked.generates)
        call.outcome = FINISHED
        output = read_back(without_logprobs(response["output"]))
        return KeptTurn(response_id(call.request_id), [*history, *request.items, *output])

    async def failed(self, error: ApiError) -> bytes:
        request, encoder = self._request, self._encoder
        if request is None or encoder is None or encoder.response is None:
            return b""
        frames = encoder.failed(error, names_error=False)
        await self._store.save_failed(request, encoder, self.call)
        return frames

    async def _answer(self, request: ResponsesRequest, *, generates: bool) -> dict[str, Any]:
        generation = request.generation if generates else _prompt_only(request.generation)
        socket, call = self._socket, self.call
        async with run_request(socket.gateway, call, generation, abort=socket.abort) as stream:
            encoder = self._encoder = request.stream_encoder(
                request_id=call.request_id, clock=unix_time_s
            )
            async for events in until_ended(stream):
                frames = b""
                for event in events:
                    if isinstance(event, ChoiceFinished) and not generates:
                        continue
                    if isinstance(event, Finished):
                        await self._store.save_finished(request, encoder, event, call)
                    frames += encoder.encode(event)
                if frames:
                    call.capture_answer(frames)
                    await socket.send_frames(frames)
        assert encoder.response is not None
        return encoder.response


def _prompt_only(generation: GenerationRequest) -> GenerationRequest:
    sampling = msgspec.structs.replace(generation.sampling, max_tokens=0)
    return msgspec.structs.replace(generation, sampling=sampling)
