"""Anthropic's message batches over HTTP."""

from __future__ import annotations

from functools import partial
from typing import IO, Any, ClassVar

import orjson

from inference.batches import selectors
from inference.batches.records import BatchRecord
from inference.gateway.batches.openai import BatchApiConsumer
from inference.gateway.batches.store import BatchStore
from inference.gateway.batches.worker import BatchWorker
from inference.gateway.gateway import Gateway
from inference.gateway.server.bodies import respond_with_files, spooled_file
from inference.wire.anthropic import batches as anthropic_batches
from inference.wire.anthropic import errors as anthropic_errors
from inference.wire.errors import ApiError, InvalidRequestError

JSON_LINES = b"application/x-jsonl"
INPUT_PURPOSE = "message_batch"


class MessageBatchApiConsumer(BatchApiConsumer):
    def __init__(self, *, gateway: Gateway, store: BatchStore, worker: BatchWorker) -> None:
        super().__init__(gateway=gateway, store=store, worker=worker, errors=anthropic_errors)

    async def found(self) -> BatchRecord:
        return await self._store.find_batch(self.named, self.account, "anthropic")

    def shown(self, batch: BatchRecord) -> dict[str, Any]:
        """Results are fetched from where the client found this server."""
        host = self.context().headers.get("host", "")
        base_url = f"{self.scope.get('scheme', 'http')}://{host}" if host else ""
        return anthropic_batches.batch_object(batch, base_url=base_url)


class MessageBatchesConsumer(MessageBatchApiConsumer):
    endpoint = "/v1/messages/batches"
    other_methods: ClassVar[tuple[str, ...]] = ("POST",)

    async def answer(self, body: bytes) -> None:
        if self.scope["method"] == "POST":
            await self._create(body)
            return
        page = anthropic_batches.parse_batch_page(self.query)
        found = await self._store.database.query(
            lambda: selectors.batch_list(
                account=self.account, dialect="anthropic", limit=page.limit, after=page.after_id
            )
        )
        objects = list(map(self.shown, found))
        await self.respond(200, anthropic_batches.list_body(objects, page.limit))

    async def _create(self, body: bytes) -> None:
        lines = spooled_file()
        num_total = await self.parsed(partial(_write_lines, lines), body)
        file = await self._store.add_file(self.account, "requests.jsonl", INPUT_PURPOSE, lines)
        try:
            created = await self._store.add_batch(
                account=self.account,
                key=self.call.who.key,
                dialect="anthropic",
                endpoint=anthropic_batches.ENDPOINT,
                input_file=file.id,
                num_total=num_total,
            )
        except ApiError:
            # The client never got this file's id, so that it cannot delete the file itself.
            await self._store.delete_file(file.id, self.account)
            raise
        self._worker.wake()
        await self.respond(200, orjson.dumps(self.shown(created)))


class MessageBatchConsumer(MessageBatchApiConsumer):
    endpoint = "/v1/messages/batches/{id}"
    other_methods: ClassVar[tuple[str, ...]] = ("DELETE",)

    async def answer(self, body: bytes) -> None:
        batch = await self.found()
        if self.scope["method"] != "DELETE":
            await self.respond(200, orjson.dumps(self.shown(batch)))
            return
        if not await self._store.delete_batch(batch):
            raise InvalidRequestError("The batch has not ended: cancel it first.")
        await self.respond(200, anthropic_batches.deleted_body(batch.id))


class CancelMessageBatchConsumer(MessageBatchApiConsumer):
    method = "POST"
    endpoint = "/v1/messages/batches/{id}/cancel"

    async def answer(self, body: bytes) -> None:
        await self._store.cancel_batch(self.named, self.account)
        await self.respond(200, orjson.dumps(self.shown(await self.found())))


class MessageBatchResultsConsumer(MessageBatchApiConsumer):
    endpoint = "/v1/messages/batches/{id}/results"

    async def answer(self, body: bytes) -> None:
        batch = await self.found()
        if batch.is_open:
            raise InvalidRequestError("The batch has not ended; its results come then.")
        await respond_with_files(self, self._store.results(batch), type_=JSON_LINES)


def _write_lines(file: IO[bytes], body: bytes, _context: object) -> int:
    number = 0
    for number, line in enumerate(anthropic_batches.parse(body), start=1):  # noqa: B007
        file.write(line)
    return number
