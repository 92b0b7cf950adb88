"""Reading, cancelling and deleting responses that an account has kept."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import orjson

from inference.conversations.records import ACTIVE, ResponseRecord
from inference.gateway.consumers.generate import STREAM_GRACE_S, StreamingConsumer
from inference.gateway.gateway import Gateway
from inference.gateway.responses.background import BackgroundRun, BackgroundRuns
from inference.gateway.responses.frame_log import EventsGoneError, FrameWatch
from inference.gateway.responses.store import ResponseStore
from inference.wire.errors import InvalidRequestError
from inference.wire.openai.responses import errors as openai_responses_errors
from inference.wire.openai.responses.replay import replay
from inference.wire.openai.responses.stored import (
    deleted_body,
    item_list_body,
    read_item_page,
    read_retrieval,
)

LOOK_INTERVAL_S = 1.0


class StoredResponseConsumer(StreamingConsumer):
    def __init__(self, *, gateway: Gateway, store: ResponseStore, runs: BackgroundRuns) -> None:
        super().__init__(gateway=gateway, errors=openai_responses_errors)
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
            await self._watch(self._watch_of(run, starting_after))
            return
        self._keep_alive_from(STREAM_GRACE_S)
        try:
            while record.status in ACTIVE:
                await asyncio.sleep(LOOK_INTERVAL_S)
                record = await self._store.find(record.id, self.call.who)
            frames = replay(record.response, starting_after, last_number=record.last_event_number)
            await self._send_frames(frames, last=True)
        finally:
            self._stop_keep_alive()

    def _watch_of(self, run: BackgroundRun, starting_after: int | None) -> FrameWatch:
        try:
            return run.log.watch(self.abort, after=-1 if starting_after is None else starting_after)
        except EventsGoneError as gone:
            raise InvalidRequestError(
                f"The events before number {gone.first} are no longer kept: ask for "
                f"'starting_after' {gone.first - 1} or later, or read the response when it has "
                "ended.",
                param="starting_after",
            ) from gone

    async def _delete(self) -> None:
        await self._store.delete(self.response_id, self.call.who)
        self._runs.cancel(self.response_id)
        await self.respond(200, deleted_body(self.response_id))


class InputItemsConsumer(StoredResponseConsumer):
    endpoint = "/v1/responses/{id}/input_items"

    async def answer(self, body: bytes) -> None:
        page = read_item_page(self.scope["query_string"])
        record = await self._store.find(self.response_id, self.call.who)
        await self.respond(200, item_list_body(record.input_items, page))


class CancelResponseConsumer(StoredResponseConsumer):
    """POST /v1/responses/{id}/cancel. One that has ended stays as it is and is returned again."""

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
