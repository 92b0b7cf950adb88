"""One turn on a WebSocket: what it continues, its answer, and what the next one may continue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import msgspec

from inference.gateway.consumers.generate import unix_time_s
from inference.gateway.gateway import Gateway
from inference.gateway.request.call import Call
from inference.gateway.request.run import run_request
from inference.gateway.responses.store import ResponseStore, read_back, record_of
from inference.protocol.events import ChoiceFinished, Event, Finished
from inference.protocol.generation import GenerationRequest
from inference.wire.errors import ApiError
from inference.wire.openai.responses.events import ResponseStreamEncoder
from inference.wire.openai.responses.input import InputItem
from inference.wire.openai.responses.object import response_id
from inference.wire.openai.responses.output import without_logprobs
from inference.wire.openai.responses.request import ResponsesRequest
from inference.wire.openai.responses.websocket import parse_message
from metering.ledger.entries import FINISHED


@dataclass(frozen=True, slots=True)
class KeptTurn:
    """``items``: the conversation up to its end."""

    response_id: str
    items: list[InputItem]


class ResponseTurn:
    """``send`` is given whole events; ``abort`` is called when they are not taken as fast as they
    come."""

    def __init__(
        self,
        gateway: Gateway,
        store: ResponseStore,
        call: Call,
        *,
        send: Callable[[bytes], Awaitable[None]],
        abort: Callable[[], None],
    ) -> None:
        self.call = call
        self.previous_response_id: str | None = None
        """Once it is known."""
        self._gateway = gateway
        self._store = store
        self._send = send
        self._abort = abort
        self._request: ResponsesRequest | None = None
        self._encoder: ResponseStreamEncoder | None = None
        self._has_finished = False

    async def run(self, message: bytes, kept: KeptTurn | None) -> KeptTurn:
        """``kept``: the turn before. Raises ``ApiError``."""
        self.call.capture_request(message)
        asked = await self._gateway.images.parsed(partial(parse_message, message), len(message))
        if asked.response.store:
            await self._store.ensure_room(self.call.who)
        history = await self._history(asked.response, kept)
        self._request = await self._store.continued(asked.response, self.call.who, history)
        await self._answer(self._request, generates=asked.generates)
        self.call.outcome = FINISHED
        assert self._encoder is not None and self._encoder.response is not None
        output = read_back(without_logprobs(self._encoder.response["output"]))
        return KeptTurn(response_id(self.request_id), [*history, *self._request.items, *output])

    @property
    def request_id(self) -> str:
        return self.call.request_id

    async def failed(self, error: ApiError) -> bytes:
        """The event that ends it; none where the client has received no response yet."""
        request, encoder = self._request, self._encoder
        if request is None or encoder is None or encoder.response is None:
            return b""
        frames = encoder.failed(error, names_error=False)
        if request.store:
            number = encoder.next_number - 1
            record = record_of(request, encoder.response, call=self.call, last_event_number=number)
            await self._store.save_failed(record)
        return frames

    async def _history(self, request: ResponsesRequest, kept: KeptTurn | None) -> list[InputItem]:
        previous = self.previous_response_id = request.previous_response_id
        if kept is not None and kept.response_id == previous:
            return kept.items
        return await self._store.history(previous, self.call.who)

    async def _answer(self, request: ResponsesRequest, *, generates: bool) -> None:
        generation = request.generation if generates else _prompt_only(request.generation)
        async with run_request(self._gateway, self.call, generation, abort=self._abort) as stream:
            self._encoder = request.stream_encoder(request_id=self.request_id, clock=unix_time_s)
            while not self._has_finished:
                events = await stream.next_events()
                if not generates:  # that it was cut after no token is no news
                    events = [event for event in events if not isinstance(event, ChoiceFinished)]
                await self._forward(events, self._encoder, request)

    async def _forward(
        self, events: list[Event], encoder: ResponseStreamEncoder, request: ResponsesRequest
    ) -> None:
        """A response is stored before its client reads that it is complete."""
        for event in events:
            if isinstance(event, Finished):
                response = encoder.response_after(event)
                if request.store:
                    number = encoder.next_number
                    record = record_of(request, response, call=self.call, last_event_number=number)
                    await self._store.save(record)
                self._has_finished = True
        if frames := b"".join([encoder.encode(event) for event in events]):
            self.call.capture_answer(frames)
            await self._send(frames)


def _prompt_only(generation: GenerationRequest) -> GenerationRequest:
    sampling = msgspec.structs.replace(generation.sampling, max_tokens=0)
    return msgspec.structs.replace(generation, sampling=sampling)
