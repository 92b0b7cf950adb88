"""OpenAI's files and batches, and Anthropic's message batches, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, ClassVar

import orjson

from inference.batches import selectors
from inference.batches.records import BatchRecord
from inference.gateway.batches.store import BatchStore, pieces_of
from inference.gateway.batches.worker import BatchWorker
from inference.gateway.consumers.api_consumer import ApiConsumer
from inference.gateway.gateway import Gateway
from inference.gateway.server.bodies import FILE_PIECE_BYTES, spooled_file
from inference.wire.anthropic import batches as anthropic_batches
from inference.wire.anthropic import errors as anthropic_errors
from inference.wire.errors import ApiError, InvalidRequestError, UnsupportedParameterError
from inference.wire.openai import batches as openai_batches
from inference.wire.openai.passed.form import Rewritten, read_form

BINARY = b"application/octet-stream"


class BatchApiConsumer(ApiConsumer):
    def __init__(self, *, gateway: Gateway, store: BatchStore, worker: BatchWorker) -> None:
        super().__init__(gateway=gateway)
        self._store = store
        self._worker = worker

    @property
    def account(self) -> str:
        return self.call.who.account

    @property
    def named(self) -> str:
        return str(self.scope["url_route"]["kwargs"]["name"])

    async def batches(self, dialect: str, limit: int, after: str | None) -> list[BatchRecord]:
        return await self._store.query(
            selectors.batch_list, account=self.account, dialect=dialect, limit=limit, after=after
        )

    async def respond_with_files(self, paths: Sequence[Path], type_: bytes) -> None:
        size_bytes = sum(path.stat().st_size for path in paths)
        await self.begin_body(200, type_=type_, num_bytes=size_bytes)
        for path in paths:
            with path.open("rb") as file:
                while piece := await asyncio.to_thread(file.read, FILE_PIECE_BYTES):
                    await self.send_body(piece)
        await self.send_body(b"", last=True)


class FilesConsumer(BatchApiConsumer):
    endpoint = "/v1/files"
    other_methods: ClassVar[tuple[str, ...]] = ("POST",)

    def __init__(self, *, gateway: Gateway, store: BatchStore, worker: BatchWorker) -> None:
        super().__init__(gateway=gateway, store=store, worker=worker)
        self._form = spooled_file()

    async def keep_body(self, part: bytes) -> None:
        await asyncio.to_thread(self._form.write, part)

    async def answer(self, body: bytes) -> None:
        if self.scope["method"] == "POST":
            await self._add()
            return
        page = openai_batches.parse_page(self.query, openai_batches.MAX_FILES_LIMIT)
        found = await self._store.query(
            selectors.file_list,
            account=self.account,
            limit=page.limit,
            after=page.after,
            purpose=page.purpose,
        )
        objects = list(map(openai_batches.file_object, found))
        await self.respond(200, openai_batches.list_body(objects, page.limit))

    async def _add(self) -> None:
        content_type = self.context().headers.get("content-type", "")
        upload = await asyncio.to_thread(read_upload, content_type, self._form)
        known = {"purpose", openai_batches.EXPIRY_ANCHOR, openai_batches.EXPIRY_SECONDS}
        for name in upload.fields.keys() - known:
            raise UnsupportedParameterError(name, "not a field of an upload")
        lasts = openai_batches.parse_expiry(upload.fields)
        if upload.fields.get("purpose") != openai_batches.PURPOSE:
            raise InvalidRequestError("'purpose' must be batch.", param="purpose")
        added = await self._store.add_file(
            self.account,
            upload.name,
            openai_batches.PURPOSE,
            upload.content.chunks(),
            upload.content.num_bytes,
            lasts=lasts,
        )
        if lasts is not None:
            self._worker.wake()
        await self.respond(200, orjson.dumps(openai_batches.file_object(added)))


class FileConsumer(BatchApiConsumer):
    endpoint = "/v1/files/{id}"
    other_methods: ClassVar[tuple[str, ...]] = ("DELETE",)

    async def answer(self, body: bytes) -> None:
        if self.scope["method"] == "DELETE":
            await self._store.delete_file(self.named, self.account)
            await self.respond(200, openai_batches.deleted_body(self.named))
            return
        found = await self._store.find_file(self.named, self.account)
        await self.respond(200, orjson.dumps(openai_batches.file_object(found)))


class FileContentConsumer(BatchApiConsumer):
    endpoint = "/v1/files/{id}/content"

    async def answer(self, body: bytes) -> None:
        path = await self._store.content(self.named, self.account)
        await self.respond_with_files([path], BINARY)


class BatchesConsumer(BatchApiConsumer):
    endpoint = "/v1/batches"
    other_methods: ClassVar[tuple[str, ...]] = ("POST",)

    async def answer(self, body: bytes) -> None:
        if self.scope["method"] == "POST":
            await self._create(await self.parsed(_parse, body))
            return
        page = openai_batches.parse_page(self.query)
        found = await self.batches("openai", page.limit, page.after)
        objects = list(map(openai_batches.batch_object, found))
        await self.respond(200, openai_batches.list_body(objects, page.limit))

    async def _create(self, asked: dict[str, Any]) -> None:
        file = await self._store.find_file(asked["input_file_id"], self.account)
        if file.purpose != openai_batches.PURPOSE:
            message = f"The file's purpose is {file.purpose}, not {openai_batches.PURPOSE}."
            raise InvalidRequestError(message, param="input_file_id")
        created = await self._store.add_batch(
            account=self.account,
            key=self.call.who.key,
            dialect="openai",
            endpoint=asked["endpoint"],
            input_file=file.id,
            metadata_json=orjson.dumps(asked.get("metadata", {})).decode(),
        )
        self._worker.wake()
        await self.respond(200, orjson.dumps(openai_batches.batch_object(created)))


class BatchConsumer(BatchApiConsumer):
    endpoint = "/v1/batches/{id}"

    async def answer(self, body: bytes) -> None:
        found = await self._store.find_batch(self.named, self.account, "openai")
        await self.respond(200, orjson.dumps(openai_batches.batch_object(found)))


class CancelBatchConsumer(BatchConsumer):
    method = "POST"
    endpoint = "/v1/batches/{id}/cancel"

    async def answer(self, body: bytes) -> None:
        await self._store.cancel_batch(self.named, self.account)
        await super().answer(body)


def _parse(body: bytes, _context: object) -> dict[str, Any]:
    return openai_batches.parse_batch(body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    name: str
    content: Rewritten
    fields: dict[str, str]


def read_upload(content_type: str, body: IO[bytes]) -> Upload:
    """Raises ``ApiError``."""
    form = read_form(content_type, body)
    file = form.file("file")
    fields = {part.name: form.text(part.name) for part in form.parts if part is not file}
    return Upload(
        name="".join(filter(str.isprintable, file.filename or "")),
        content=Rewritten(body, (file,)),
        fields={name: text for name, text in fields.items() if text is not None},
    )


JSON_LINES = b"application/x-jsonl"
INPUT_PURPOSE = "message_batch"


class MessageBatchApiConsumer(BatchApiConsumer):
    errors = anthropic_errors

    async def found(self) -> BatchRecord:
        return await self._store.find_batch(self.named, self.account, "anthropic")

    def shown(self, batch: BatchRecord) -> dict[str, Any]:
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
        found = await self.batches("anthropic", page.limit, page.after_id)
        objects = list(map(self.shown, found))
        await self.respond(200, anthropic_batches.list_body(objects, page.limit))

    async def _create(self, body: bytes) -> None:
        lines = spooled_file()
        num_total = await self.parsed(partial(_write_lines, lines), body)
        num_bytes = lines.tell()
        lines.seek(0)
        file = await self._store.add_file(
            self.account, "requests.jsonl", INPUT_PURPOSE, pieces_of(lines), num_bytes
        )
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
            # The client never got this file's id, so it cannot delete the file.
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
        await self.respond_with_files(self._store.results(batch), JSON_LINES)


def _write_lines(file: IO[bytes], body: bytes, _context: object) -> int:
    number = 0
    for number, line in enumerate(anthropic_batches.parse(body), start=1):  # noqa: B007
        file.write(line)
    return number
