"""One batch, while this gateway has its lease.

    lines ─▶ rows, a few at once ─▶ result files, line by line ─▶ ended
    every second: the lease renewed, counts published, a cancellation read

The gateway that takes it up adopts the answers written so far, by any gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from types import ModuleType
from typing import Any

from inference.batches import services
from inference.batches.input_file import InputFile
from inference.batches.records import CANCELLING, BatchRecord
from inference.batches.result_files import ResultFiles, ResultsTakenError
from inference.gateway.batches.row import BatchRow, ExpiredError
from inference.gateway.batches.store import BatchStore, pieces_of
from inference.gateway.gateway import Gateway
from inference.wire.anthropic import batches as anthropic_batches
from inference.wire.common.batch_lines import COUNTS, BatchLine, Unrun
from inference.wire.errors import ApiError, InternalError, ServiceUnavailableError
from inference.wire.openai import batches as openai_batches
from metering.principal import Principal

logger = logging.getLogger(__name__)

ROWS_AT_ONCE = 4
PROGRESS_INTERVAL_S = 1.0
DIALECTS: dict[str, ModuleType] = {"openai": openai_batches, "anthropic": anthropic_batches}


class BatchRun:
    def __init__(self, gateway: Gateway, store: BatchStore, batch: BatchRecord) -> None:
        self._gateway = gateway
        self._store = store
        self._batch = batch
        self._dialect = DIALECTS[batch.dialect]
        self._begun: dict[str, BatchLine] = {}
        """The lines that are running, by custom id."""
        self._counts: Counter[str] = Counter(dict.fromkeys(COUNTS, 0))
        self._why_unrun: Unrun | None = "cancelled" if batch.status == CANCELLING else None
        self._is_lost = False
        """Another gateway has the lease."""
        self._writing = asyncio.Lock()
        self._suspect_runs = asyncio.Lock()
        """Held by a row under which an engine has died."""
        self._results = ResultFiles(store.files, batch, gateway.gateway_id)

    async def work(self) -> None:
        try:
            await self._work()
        except asyncio.CancelledError:
            with contextlib.suppress(ServiceUnavailableError):
                await asyncio.shield(self._release())
            raise
        except ServiceUnavailableError as error:
            logger.warning("batch %s waits for another try: %s", self._batch.id, error.message)
        except OSError as error:
            # Answers that could not be kept are asked for again.
            logger.warning(
                "batch %s waits for another try: its results cannot be written: %s",
                self._batch.id,
                error,
            )
        except ResultsTakenError:
            logger.info("batch %s: another gateway continues it", self._batch.id)
        except Exception:
            logger.exception("batch %s failed", self._batch.id)
            await self._end("failed", InternalError().message)

    async def _work(self) -> None:
        batch = self._batch
        try:
            path = self._store.path(batch.input_file)
        except ServiceUnavailableError:
            if await self._store.is_kept(batch):
                raise
            await self._resume()
            self._counts["num_total"] = max(batch.num_total, sum(self._counts.values()))
            await self._end("failed", "The input file was deleted.")
            return
        with contextlib.closing(InputFile(path, batch.endpoint)) as lines:
            await self._run(lines)

    async def _run(self, lines: InputFile) -> None:
        answered = await self._resume()
        try:
            self._counts["num_total"] = await asyncio.to_thread(lines.scan, answered)
        except ApiError as error:
            await self._end("failed", error.message)
            return
        await self._run_rows(lines)
        if self._is_lost:
            return
        if self._why_unrun is not None:
            await self._write_unrun(self._why_unrun, lines)
        await self._end(self._why_unrun or "completed")

    async def _resume(self) -> set[str]:
        """Counts what has been answered, and returns the custom ids of it."""
        answered: set[str] = set()

        def count(result: dict[str, Any]) -> None:
            answered.add(result["custom_id"])
            self._counts[self._dialect.count_of(result)] += 1

        await asyncio.to_thread(self._results.adopt, count)
        return answered

    async def _run_rows(self, lines: InputFile) -> None:
        rows = [asyncio.create_task(self._take_rows(lines)) for _ in range(ROWS_AT_ONCE)]
        watch = asyncio.create_task(self._watch(rows))
        try:
            ended = await asyncio.gather(*rows, return_exceptions=True)
        finally:
            for task in (watch, *rows):
                task.cancel()
            await asyncio.gather(watch, *rows, return_exceptions=True)
        for one in ended:
            if isinstance(one, Exception):
                raise one

    async def _take_rows(self, lines: InputFile) -> None:
        while self._why_unrun is None:
            line = lines.next_line()
            if line is None:
                return
            self._begun[line.custom_id] = line
            try:
                await self._answer(line)
            except ExpiredError:
                self._why_unrun = "expired"
                return

    async def _answer(self, line: BatchLine) -> None:
        row = BatchRow(self._gateway, line, endpoint=self._batch.endpoint, alone=self._suspect_runs)
        until_unix_s = self._batch.expires_at.timestamp()
        try:
            body = await row.answer(self._principal, until_unix_s=until_unix_s)
        except ApiError as error:
            written = [self._dialect.errored(line.custom_id, row.request_id, error)]
            kept = self._keep(line, self._batch.error_file, "num_failed", written)
        else:
            head, tail = self._dialect.around_answer(line.custom_id, row.request_id)
            answer = chain([head], pieces_of(body), [tail])
            kept = self._keep(line, self._batch.output_file, "num_completed", answer)
        await asyncio.shield(kept)  # what has been paid for

    async def _principal(self) -> Principal:
        """Who asks, as of now: the key may have been revoked since."""
        return await self._gateway.identifier.still(self._batch.account, self._batch.key)

    async def _keep(
        self, line: BatchLine, file_id: str, count: str, written: Iterable[bytes]
    ) -> None:
        async with self._writing:
            await asyncio.to_thread(self._results.append, file_id, written)
            self._counts[count] += 1
            del self._begun[line.custom_id]

    async def _write_unrun(self, why: Unrun, lines: InputFile) -> None:
        """Writes for the lines without a result why they were not run, after the pending
        results."""
        async with self._writing:
            num_left = 0

            def results() -> Iterator[bytes]:
                nonlocal num_left
                for line in chain(self._begun.values(), lines.rest()):
                    num_left += 1
                    yield self._dialect.unrun(line.custom_id, self._batch.id, why)

            await asyncio.to_thread(self._results.append, self._batch.error_file, results())
            self._counts[f"num_{why}"] += num_left

    async def _watch(self, rows: list[asyncio.Task[None]]) -> None:
        """Ends the rows where the batch is cancelled, or another gateway has its lease."""
        while True:
            with contextlib.suppress(ServiceUnavailableError):
                status = await self._status()
                self._is_lost = status is None
                if status == CANCELLING:
                    self._why_unrun = "cancelled"
                if self._is_lost or self._why_unrun == "cancelled":
                    for row in rows:
                        row.cancel()
                    return
            await asyncio.sleep(PROGRESS_INTERVAL_S)

    async def _status(self) -> str | None:
        """Renews the lease. ``None``: it is lost."""
        return await self._store.database.query(
            partial(
                services.batch_progress,
                batch_id=self._batch.id,
                holder=self._gateway.gateway_id,
                counts=dict(self._counts),
            )
        )

    async def _end(self, status: str, failure: str = "") -> None:
        if await self._status() is None:
            return  # another gateway has the lease, and the files
        await asyncio.to_thread(self._results.finish)
        await self._store.keep_results(self._batch)
        await self._store.database.query(
            partial(
                services.batch_end,
                batch_id=self._batch.id,
                holder=self._gateway.gateway_id,
                status=status,
                counts=dict(self._counts),
                failure=failure,
            )
        )

    async def _release(self) -> None:
        await self._store.database.query(
            partial(
                services.batch_release,
                batch_id=self._batch.id,
                holder=self._gateway.gateway_id,
            )
        )
