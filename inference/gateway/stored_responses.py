"""Reading, cancelling and deleting responses that an account has kept."""

from __future__ import annotations

from typing import ClassVar

import orjson

from inference.gateway.background import BackgroundRuns
from inference.gateway.consumers import ApiConsumer
from inference.gateway.gateway import Gateway
from inference.gateway.response_store import ResponseStore
from inference.wire.errors import InvalidRequestError
from inference.wire.openai_responses_stored import (
    deleted_body,
    item_list_body,
    read_item_page,
    read_retrieval,
)


class StoredResponseConsumer(ApiConsumer):
    """What these have in common: an id in the path."""

    def __init__(self, *, gateway: Gateway, store: ResponseStore, runs: BackgroundRuns) -> None:
        super().__init__(gateway=gateway)
        self._store = store
        self._runs = runs

    @property
    def response_id(self) -> str:
        return str(self.scope["url_route"]["kwargs"]["response_id"])


class ResponseConsumer(StoredResponseConsumer):
    """GET and DELETE /v1/responses/{id}."""

    endpoint = "/v1/responses/{id}"

    other_methods: ClassVar[tuple[str, ...]] = ("DELETE",)

    async def answer(self, body: bytes) -> None:
        if self.scope["method"] == "DELETE":
            await self._delete()
            return
        read_retrieval(self.scope["query_string"])
        record = await self._store.find(self.response_id, self.call.who)
        await self.respond(200, orjson.dumps(record.response))

    async def _delete(self) -> None:
        """One that is still being worked on is cancelled by it."""
        await self._store.delete(self.response_id, self.call.who)
        self._runs.cancel(self.response_id)
        await self.respond(200, deleted_body(self.response_id))


class InputItemsConsumer(StoredResponseConsumer):
    """GET /v1/responses/{id}/input_items: what this one request brought, not the conversation
    before it."""

    endpoint = "/v1/responses/{id}/input_items"

    async def answer(self, body: bytes) -> None:
        page = read_item_page(self.scope["query_string"])
        record = await self._store.find(self.response_id, self.call.who)
        await self.respond(200, item_list_body(record.input_items, page))


class CancelResponseConsumer(StoredResponseConsumer):
    """POST /v1/responses/{id}/cancel. One that has ended stays as it is and is told again."""

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
