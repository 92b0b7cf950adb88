"""Responses over HTTP: made, kept, read back, watched, cancelled and deleted.

    parse ─▶ continued ─┬▶ generate ─▶ keep ─▶ last event         with its client
                        └▶ keep as queued ─▶ BackgroundRun        without it; a stream watches

A response is stored before its client reads that it is complete: a client that has its id can
build on it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import ClassVar

import orjson

from inference.conversations.records import ACTIVE, ResponseRecord
from inference.gateway.consumers.api_consumer import ApiConsumer
from inference.gateway.consumers.generate import (
    STREAM_GRACE_S,
    GenerationConsumer,
    StreamingConsumer,
    unix_time_s,
)
from inference.gateway.gateway import Gateway
from inference.gateway.request.attempt import until_ended
from inference.gateway.responses.background import BackgroundRuns, EventsGoneError, FrameLog
from inference.gateway.responses.store import ResponseStore, record_of
from inference.protocol.events import ChoiceFinished, Delta, Event, Finished, FinishReason, Usage
from inference.protocol.generation import GenerationRequest
from inference.wire.dialect import Encoder, ParsedRequest
from inference.wire.errors import ApiError, InvalidRequestError, ModelNotAllowedError
from inference.wire.openai.responses import compact as openai_responses_compact
from inference.wire.openai.responses import errors as openai_responses_errors
from inference.wire.openai.responses import request as openai_responses
from inference.wire.openai.responses.compact import settled
from inference.wire.openai.responses.events import ResponseBodyEncoder, ResponseStreamEncoder
from inference.wire.openai.responses.request import ResponsesRequest
from inference.wire.openai.responses.stored import (
    deleted_body,
    item_list_body,
    read_item_page,
    read_retrieval,
    replay,
)

logger = logging.getLogger(__name__)


class ResponsesConsumer(GenerationConsumer):
    def __init__(self, *, gateway: Gateway, store: ResponseStore, runs: BackgroundRuns) -> None:
        super().__init__(
            gateway=gateway,
            parse=openai_responses.parse,
            endpoint="/v1/responses",
            errors=openai_responses_errors,
        )
        self._store = store
        self._runs = runs
        self._asked: ResponsesRequest | None = None
        self._stream_encoder: ResponseStreamEncoder | None = None

    async def _generate(self, request: ParsedRequest) -> None:
        assert isinstance(request, ResponsesRequest), "this consumer has one parser"
        if request.store:
            await self._store.ensure_room(self.call.who)
        self._asked = await self._store.continued(request, self.call.who)
        if request.background:
            await self._start_in_background(self._asked)
        else:
            await super()._generate(self._asked)

    def _encoder(self, request: ParsedRequest) -> Encoder:
        encoder = super()._encoder(request)
        if isinstance(encoder, ResponseStreamEncoder):
            self._stream_encoder = encoder
        return encoder

    async def _forward(self, events: list[Event], encoder: Encoder, request: ParsedRequest) -> None:
        *earlier, last = events
        if isinstance(last, Finished) and self._asked is not None and self._asked.store:
            if earlier:
                await super()._forward(earlier, encoder, request)
            assert isinstance(encoder, ResponseStreamEncoder | ResponseBodyEncoder)
            await self._store.save_finished(self._asked, encoder, last, self.call)
            events = [last]
        await super()._forward(events, encoder, request)

    async def refuse(self, error: ApiError) -> None:
        """A stream that has begun ends in its dialect's form and is stored as failed; one that only
        watches a run ends with it."""
        if self._watched is not None and self._response_started:
            await self._forward_watched(self._watched)
            return
        encoder = self._stream_encoder
        if encoder is None or not self._response_started or self._response_ended:
            await super().refuse(error)
            return
        frames = encoder.failed(error)
        if self._asked is not None:
            await self._store.save_failed(self._asked, encoder, self.call)
        await self.send_body(frames, last=True)

    async def _start_in_background(self, request: ResponsesRequest) -> None:
        entry = await self.gateway.catalogue.find(request.generation.model)
        if not self.call.who.may_use(entry):
            raise ModelNotAllowedError(entry.name)
        encoder = request.stream_encoder(request_id=self.request_id, clock=unix_time_s)
        opening = encoder.opening()
        queued = encoder.response
        assert queued is not None, "the encoder has opened"
        await self._store.save(record_of(request, queued, call=self.call))
        run = self._runs.start(request, call=self.call, encoder=encoder, opening=opening)
        if not request.stream:
            await self.respond(200, orjson.dumps(queued))
            return
        await self._watch(run.log)


class CompactionConsumer(ApiConsumer):
    method = "POST"
    endpoint = "/v1/responses/compact"
    errors = openai_responses_errors

    def __init__(self, *, gateway: Gateway, store: ResponseStore) -> None:
        super().__init__(gateway=gateway)
        self._store = store

    async def answer(self, body: bytes) -> None:
        await self.respond(200, await self._compacted(body))

    async def _compacted(self, body: bytes) -> bytes:
        asked = await self.read(openai_responses_compact.parse, body)
        history = await self._store.history(asked.previous_response_id, self.call.who)
        request = await self._store.continued(asked, self.call.who, history)
        conversation = [*history, *request.items]
        written, reason, usage = await self._written(
            openai_responses_compact.summary_request(request)
        )
        return openai_responses_compact.body(
            conversation,
            settled(written, reason, usage, conversation),
            usage,
            request_id=self.request_id,
            created_unix_s=unix_time_s(),
        )

    async def _written(self, request: GenerationRequest) -> tuple[str, FinishReason, Usage]:
        texts: list[str] = []
        reason: FinishReason = "stop"
        async with self.running(request) as stream:
            async for events in until_ended(stream):
                for event in events:
                    match event:
                        case Delta():
                            texts.append(event.text)
                        case ChoiceFinished():
                            reason = event.reason
                        case Finished():
                            return "".join(texts), reason, event.usage
        raise AssertionError("an answer without an end")


LOOK_INTERVAL_S = 1.0


class StoredResponseConsumer(StreamingConsumer):
    errors = openai_responses_errors

    def __init__(self, *, gateway: Gateway, store: ResponseStore, runs: BackgroundRuns) -> None:
        super().__init__(gateway=gateway)
        self._store = store
        self._runs = runs

    @property
    def response_id(self) -> str:
        return str(self.scope["url_route"]["kwargs"]["response_id"])


class ResponseConsumer(StoredResponseConsumer):
    endpoint = "/v1/responses/{id}"

    other_methods: ClassVar[tuple[str, ...]] = ("DELETE",)

    async def answer(self, body: bytes) -> None:
        if self.scope["method"] == "DELETE":
            await self._delete()
            return
        asked = read_retrieval(self.scope["query_string"])
        record = await self._store.find(self.response_id, self.call.who)
        if asked.stream:
            await self._stream(record, asked.starting_after)
        else:
            await self.respond(200, orjson.dumps(record.response))

    async def _stream(self, record: ResponseRecord, starting_after: int | None) -> None:
        """Watches a response that runs here; waits for the end of one that runs on another gateway;
        repeats the events of one that has ended."""
        run = self._runs.find(record.id)
        if run is not None:
            number = 0 if starting_after is None else starting_after + 1
            _check_kept(run.log, number)
            await self._watch(run.log, number)
            return
        async with self._kept_alive(STREAM_GRACE_S):
            while record.status in ACTIVE:
                await asyncio.sleep(LOOK_INTERVAL_S)
                record = await self._store.find(record.id, self.call.who)
            frames = replay(record.response, starting_after, last_number=record.last_event_number)
            await self._send_frames(frames, last=True)

    async def _delete(self) -> None:
        await self._store.delete(self.response_id, self.call.who)
        self._runs.cancel(self.response_id)
        await self.respond(200, deleted_body(self.response_id))


def _check_kept(log: FrameLog, number: int) -> None:
    """Raises ``InvalidRequestError``."""
    try:
        log.check(number)
    except EventsGoneError as gone:
        raise InvalidRequestError(
            f"The events before number {gone.first} are no longer kept: ask for "
            f"'starting_after' {gone.first - 1} or later, or read the response when it has "
            "ended.",
            param="starting_after",
        ) from gone


class InputItemsConsumer(StoredResponseConsumer):
    endpoint = "/v1/responses/{id}/input_items"

    async def answer(self, body: bytes) -> None:
        page = read_item_page(self.scope["query_string"])
        record = await self._store.find(self.response_id, self.call.who)
        await self.respond(200, item_list_body(record.input_items, page))


class CancelResponseConsumer(StoredResponseConsumer):
    """POST /v1/responses/{id}/cancel. One that has ended is returned unchanged."""

    method = "POST"
    endpoint = "/v1/responses/{id}/cancel"

    async def answer(self, body: bytes) -> None:
        record = await self._store.find(self.response_id, self.call.who)
        if not record.background:
            raise InvalidRequestError("Only responses made with 'background' can be cancelled.")
        await self._store.cancel(self.response_id, self.call.who)
        self._runs.cancel(self.response_id)
        record = await self._store.find(self.response_id, self.call.who)
        await self.respond(200, orjson.dumps(record.response))
