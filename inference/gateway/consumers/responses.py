"""Responses over HTTP: made, kept, read back, watched, cancelled and deleted.

parse ─▶ continued ─┬▶ generate ─▶ keep ─▶ last event         with its client
                    └▶ keep as queued ─▶ BackgroundRun        without it; a stream watches
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from inference.conversations.models import ACTIVE, ResponseRecord
from inference.gateway.background_responses import BackgroundRuns, FrameLog
from inference.gateway.consumers.generate import (
    KEEP_ALIVE_S,
    STREAM_GRACE_S,
    GenerationConsumer,
    unix_time_s,
)
from inference.gateway.request.attempt import until_ended
from inference.gateway.response_store import ResponseStore, record_of
from inference.protocol.events import ChoiceFinished, Delta, Event, Finished, FinishReason, Usage
from inference.protocol.generation import GenerationRequest
from inference.wire.dialect import Encoder, ParsedRequest
from inference.wire.errors import ApiError, InvalidRequestError, ModelNotAllowedError
from inference.wire.responses import request as openai_responses
from inference.wire.responses.events import ResponseBodyEncoder, ResponseStreamEncoder
from inference.wire.responses.history import (
    compacted_body,
    deleted_body,
    item_list_body,
    parse_compact,
    read_item_page,
    read_retrieval,
    replay,
    settled,
    summary_request,
)
from inference.wire.responses.request import ResponsesRequest

LOOK_INTERVAL_S = 1.0


class ResponsesConsumer(GenerationConsumer):
    def __init__(self, *, store: ResponseStore, runs: BackgroundRuns, **options: Any) -> None:
        super().__init__(parse=openai_responses.parse, **options)
        self._store = store
        self._runs = runs
        self._asked: ResponsesRequest | None = None
        self._stream_encoder: ResponseStreamEncoder | None = None
        self._watched: FrameLog | None = None
        self._next_frame = 0

    async def answer_request(self, request: ParsedRequest) -> None:
        assert isinstance(request, ResponsesRequest), "this consumer has one parser"
        if request.store:
            await self._store.ensure_room(self.call.who)
        self._asked = await self._store.continued(request, self.call.who)
        if request.background:
            await self._start_in_background(self._asked)
        else:
            await super().answer_request(self._asked)

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
        log = self._runs.start(request, call=self.call, encoder=encoder, opening=opening)
        if request.stream:
            await self._watch(log)
        else:
            await self.respond(200, orjson.dumps(queued))

    async def _watch(self, log: FrameLog, number: int = 0) -> None:
        self._watched, self._next_frame = log, number
        with self._kept_alive(KEEP_ALIVE_S):
            await self._forward_watched(log)

    async def _forward_watched(self, log: FrameLog) -> None:
        is_last = False
        while not is_last:
            frames, is_last = await log.take(self._next_frame)
            self._next_frame = max(self._next_frame, len(log))
            await self._send_frames(frames, last=is_last)

    async def retrieve(self, body: bytes) -> None:
        asked = read_retrieval(self.scope["query_string"])
        record = await self._store.find(self.named, self.call.who)
        if asked.stream:
            await self._stream(record, asked.starting_after)
        else:
            await self.respond(200, orjson.dumps(record.response))

    async def _stream(self, record: ResponseRecord, starting_after: int | None) -> None:
        if (log := self._runs.find(record.id)) is not None:
            await self._watch(log, 0 if starting_after is None else starting_after + 1)
            return
        with self._kept_alive(STREAM_GRACE_S):
            while record.status in ACTIVE:
                await asyncio.sleep(LOOK_INTERVAL_S)
                record = await self._store.find(record.id, self.call.who)
            frames = replay(record.response, starting_after, last_number=record.last_event_number)
            await self._send_frames(frames, last=True)

    async def delete(self, body: bytes) -> None:
        await self._store.delete(self.named, self.call.who)
        self._runs.cancel(self.named)
        await self.respond(200, deleted_body(self.named))

    async def input_items(self, body: bytes) -> None:
        page = read_item_page(self.scope["query_string"])
        record = await self._store.find(self.named, self.call.who)
        await self.respond(200, item_list_body(record.input_items, page))

    async def cancel(self, body: bytes) -> None:
        """One that has ended is returned unchanged."""
        record = await self._store.find(self.named, self.call.who)
        if not record.background:
            raise InvalidRequestError("Only responses made with 'background' can be cancelled.")
        await self._store.cancel(self.named, self.call.who)
        self._runs.cancel(self.named)
        record = await self._store.find(self.named, self.call.who)
        await self.respond(200, orjson.dumps(record.response))

    async def compact(self, body: bytes) -> None:
        asked = await self.parsed(parse_compact, body)
        history = await self._store.history(asked.previous_response_id, self.call.who)
        request = await self._store.continued(asked, self.call.who, history)
        conversation = [*history, *request.items]
        written, reason, usage = await self._written(summary_request(request))
        compacted = compacted_body(
            conversation,
            settled(written, reason, usage, conversation),
            usage,
            request_id=self.request_id,
            created_unix_s=unix_time_s(),
        )
        await self.respond(200, compacted)

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
