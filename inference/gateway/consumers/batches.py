"""OpenAI's files and batches, and Anthropic's message batches, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

import orjson

from inference.batches import services
from inference.batches.records import BatchRecord
from inference.gateway.batch_store import BatchStore
from inference.gateway.batch_worker import BatchWorker
from inference.gateway.consumers.api_consumer import ApiConsumer
from inference.gateway.server.http_messages import FILE_PIECE_BYTES, pieces_of, spooled_file
from inference.wire.anthropic import batches as anthropic_batches
from inference.wire.errors import ApiError, InvalidRequestError, UnsupportedParameterError
from inference.wire.openai import batches as openai_batches
from inference.wire.openai.multipart_form import Rewritten, read_form


class BatchApiConsumer(ApiConsumer):
    def __init__(self, *, store: BatchStore, worker: BatchWorker, **options: Any) -> None:
        super().__init__(**options)
        self._store = store
        self._worker = worker

    @property
    def account(self) -> str:
        return self.call.who.account

    async def respond_with(self, found: dict[str, Any]) -> None:
        await self.respond(200, orjson.dumps(found))

    async def batches(self, dialect: str, limit: int, after: str | None) -> list[BatchRecord]:
        return await self._store.query(
            services.batch_list, account=self.account, dialect=dialect, limit=limit, after=after
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
    async def list_files(self, body: bytes) -> None:
        page = openai_batches.parse_page(self.query, openai_batches.MAX_FILES_LIMIT)
        found = await self._store.query(
            services.file_list,
            account=self.account,
            limit=page.limit,
            after=page.after,
            purpose=page.purpose,
        )
        objects = list(map(openai_batches.file_object, found))
        await self.respond(200, openai_batches.list_body(objects, page.limit))

    async def add_file(self, body: bytes) -> None:
        assert self._form is not None, "an upload is a form"
        content_type = self.context().headers.get("content-type", "")
        form = await asyncio.to_thread(read_form, content_type, self._form)
        file = form.file("file")
        fields = {
            part.name: text
            for part in form.parts
            if part is not file and (text := form.text(part.name)) is not None
        }
        known = {"purpose", openai_batches.EXPIRY_ANCHOR, openai_batches.EXPIRY_SECONDS}
        for name in fields.keys() - known:
            raise UnsupportedParameterError(name, "not a field of an upload")
        lasts = openai_batches.parse_expiry(fields)
        if fields.get("purpose") != openai_batches.PURPOSE:
            raise InvalidRequestError("'purpose' must be batch.", param="purpose")
        content = Rewritten(self._form, (file,))
        added = await self._store.add_file(
            self.account,
            "".join(filter(str.isprintable, file.filename or "")),
            openai_batches.PURPOSE,
            content.chunks(),
            content.num_bytes,
            lasts=lasts,
        )
        if lasts is not None:
            self._worker.wake()
        await self.respond_with(openai_batches.file_object(added))

    async def file(self, body: bytes) -> None:
        found = await self._store.find_file(self.named, self.account)
        await self.respond_with(openai_batches.file_object(found))

    async def delete_file(self, body: bytes) -> None:
        await self._store.delete_file(self.named, self.account)
        await self.respond(200, openai_batches.deleted_body(self.named))

    async def content(self, body: bytes) -> None:
        file = await self._store.find_file(self.named, self.account)
        await self.respond_with_files([self._store.path(file.id)], b"application/octet-stream")


class BatchesConsumer(BatchApiConsumer):
    async def list_batches(self, body: bytes) -> None:
        page = openai_batches.parse_page(self.query)
        found = await self.batches("openai", page.limit, page.after)
        objects = list(map(openai_batches.batch_object, found))
        await self.respond(200, openai_batches.list_body(objects, page.limit))

    async def create(self, body: bytes) -> None:
        asked = await self.parsed(lambda body, _context: openai_batches.parse_batch(body), body)
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
        await self.respond_with(openai_batches.batch_object(created))

    async def batch(self, body: bytes) -> None:
        found = await self._store.find_batch(self.named, self.account, "openai")
        await self.respond_with(openai_batches.batch_object(found))

    async def cancel(self, body: bytes) -> None:
        await self._store.query(services.batch_cancel, batch_id=self.named, account=self.account)
        await self.batch(body)


INPUT_PURPOSE = "message_batch"


class MessageBatchesConsumer(BatchApiConsumer):
    async def _found(self) -> BatchRecord:
        return await self._store.find_batch(self.named, self.account, "anthropic")

    def _shown(self, batch: BatchRecord) -> dict[str, Any]:
        host = self.context().headers.get("host", "")
        base_url = f"{self.scope.get('scheme', 'http')}://{host}" if host else ""
        return anthropic_batches.batch_object(batch, base_url=base_url)

    async def list_batches(self, body: bytes) -> None:
        page = anthropic_batches.parse_batch_page(self.query)
        found = await self.batches("anthropic", page.limit, page.after_id)
        objects = list(map(self._shown, found))
        await self.respond(200, anthropic_batches.list_body(objects, page.limit))

    async def create(self, body: bytes) -> None:
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
        await self.respond_with(self._shown(created))

    async def batch(self, body: bytes) -> None:
        await self.respond_with(self._shown(await self._found()))

    async def delete(self, body: bytes) -> None:
        if not await self._store.delete_batch(await self._found()):
            raise InvalidRequestError("The batch has not ended: cancel it first.")
        await self.respond(200, anthropic_batches.deleted_body(self.named))

    async def cancel(self, body: bytes) -> None:
        await self._store.query(services.batch_cancel, batch_id=self.named, account=self.account)
        await self.batch(body)

    async def results(self, body: bytes) -> None:
        batch = await self._found()
        if batch.is_open:
            raise InvalidRequestError("The batch has not ended; its results come then.")
        await self.respond_with_files(self._store.results(batch), b"application/x-jsonl")


def _write_lines(file: IO[bytes], body: bytes, _context: object) -> int:
    number = 0
    for number, line in enumerate(anthropic_batches.parse(body), start=1):  # noqa: B007
        file.write(line)
    return number
