"""Files and batches of accounts: rows in the database, contents in a directory that gateways may
share."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from inference.batches import services
from inference.batches.files import FileStore
from inference.batches.records import BatchRecord, FileRecord
from inference.gateway.database import DatabaseThreads
from inference.protocol.refusals import Cause
from inference.quotas import Quota, QuotaFullError, Used
from inference.wire.errors import (
    BatchNotFoundError,
    FileNotStoredError,
    InsufficientQuotaError,
    ServiceUnavailableError,
)

BATCH_LASTS = timedelta(hours=24)
MAX_FORGOTTEN = 100
RESULT_PURPOSES = {"openai": "batch_output", "anthropic": "message_batch_results"}
ID_PREFIXES = {"openai": "batch_", "anthropic": "msgbatch_"}


class BatchStore:
    """Each method raises 503 database_unavailable when the database is offline."""

    def __init__(
        self, files: FileStore, *, max_files: int, max_bytes: int, max_open_batches: int
    ) -> None:
        self.files = files
        self.query = DatabaseThreads("batches").query
        self._max_bytes = max_bytes
        self._quota = Quota(max_files, max_bytes)
        self._max_open_batches = max_open_batches

    async def add_file(
        self,
        account: str,
        name: str,
        purpose: str,
        content: Iterable[bytes],
        size_bytes: int,
        *,
        lasts: timedelta | None = None,
    ) -> FileRecord:
        """Raises ``InsufficientQuotaError``, also after the content is written."""
        file_id = _file_id()
        try:
            self._quota.check(await self.query(services.account_usage, account), size_bytes)
            await self._on_disk(self.files.write, file_id, content)
            return await self.query(
                services.file_add,
                file_id=file_id,
                account=account,
                name=name,
                purpose=purpose,
                size_bytes=size_bytes,
                quota=self._quota,
                lasts=lasts,
            )
        except QuotaFullError as error:
            await self._on_disk(self.files.delete, file_id)
            raise self._full(account, error.used) from error

    async def find_file(self, file_id: str, account: str) -> FileRecord:
        """Raises ``FileNotStoredError``."""
        found = await self.query(services.file_find, file_id, account=account)
        if found is None:
            raise FileNotStoredError(file_id)
        return found

    def path(self, file_id: str) -> Path:
        """Raises ``ServiceUnavailableError`` where a file that the database lists is missing."""
        if not self.files.has(file_id):
            raise ServiceUnavailableError(
                "storage_unavailable",
                f"What is in '{file_id}' lies on another gateway's disk, or is gone. Gateways of "
                "several hosts need a directory that they share (HELEXA_FILES_DIR).",
            )
        return self.files.path(file_id)

    async def is_kept(self, batch: BatchRecord) -> bool:
        found = await self.query(services.file_find, batch.input_file, account=batch.account)
        return found is not None

    def results(self, batch: BatchRecord) -> list[Path]:
        """Raises ``ServiceUnavailableError``."""
        num_errors = batch.num_failed + batch.num_expired + batch.num_cancelled
        files = ((batch.output_file, batch.num_completed), (batch.error_file, num_errors))
        return [self.path(file_id) for file_id, number in files if number]

    async def delete_file(self, file_id: str, account: str) -> None:
        """Raises ``FileNotStoredError``."""
        if not await self.query(services.file_delete, file_id=file_id, account=account):
            raise FileNotStoredError(file_id)
        await self._on_disk(self.files.delete, file_id)

    async def forget_expired_files(self) -> None:
        while expired := await self.query(services.files_expired, MAX_FORGOTTEN):
            for file_id in expired:
                await self._on_disk(self.files.delete, file_id)
            await self.query(services.files_forget, file_ids=expired)

    async def add_batch(
        self, *, account: str, key: str, dialect: str, endpoint: str, **fields: Any
    ) -> BatchRecord:
        """Raises ``InsufficientQuotaError``."""
        made: Mapping[str, Any] = {
            "id": f"{ID_PREFIXES[dialect]}{uuid.uuid4().hex}",
            "account": account,
            "key": key,
            "dialect": dialect,
            "endpoint": endpoint,
            "output_file": _file_id(),
            "error_file": _file_id(),
            **fields,
        }
        try:
            return await self.query(
                services.batch_create,
                lasts=BATCH_LASTS,
                fields=made,
                max_open=self._max_open_batches,
            )
        except QuotaFullError as error:
            raise InsufficientQuotaError(
                f"Account '{account}' has {error.used.number:,} open batches and may have "
                f"{self._max_open_batches:,}.",
                cause=Cause.STORED,
            ) from error

    async def find_batch(self, batch_id: str, account: str, dialect: str) -> BatchRecord:
        """Raises ``BatchNotFoundError``."""
        found = await self.query(services.batch_find, batch_id, account=account, dialect=dialect)
        if found is None:
            raise BatchNotFoundError(batch_id)
        return found

    async def delete_batch(self, batch: BatchRecord) -> bool:
        account = batch.account
        if not await self.query(services.batch_delete, batch_id=batch.id, account=account):
            return False
        for file_id in (batch.input_file, batch.output_file, batch.error_file):
            await self.query(services.file_delete, file_id=file_id, account=account)
            await self._on_disk(self.files.delete, file_id)
        return True

    async def keep_results(self, batch: BatchRecord) -> None:
        for file_id, what in ((batch.output_file, "output"), (batch.error_file, "error")):
            if size_bytes := self.files.size_bytes(file_id):
                await self.query(
                    services.result_save,
                    file_id=file_id,
                    account=batch.account,
                    name=f"{batch.id}_{what}.jsonl",
                    purpose=RESULT_PURPOSES[batch.dialect],
                    size_bytes=size_bytes,
                )

    def _full(self, account: str, used: Used) -> InsufficientQuotaError:
        return InsufficientQuotaError(
            f"Account '{account}' keeps {used.number:,} files of {used.size_bytes:,} bytes; it may "
            f"keep {self._quota.number:,} and {self._max_bytes:,} bytes. Delete some.",
            cause=Cause.STORED,
            param="file",
        )

    @staticmethod
    async def _on_disk(work: Callable[..., None], *given: Any) -> None:
        try:
            await asyncio.to_thread(work, *given)
        except OSError as error:
            raise ServiceUnavailableError(
                "storage_unavailable", f"The file cannot be stored: {error.strerror}."
            ) from error


def _file_id() -> str:
    return f"file-{uuid.uuid4().hex}"
