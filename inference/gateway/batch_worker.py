"""Claims batches without a worker and runs them, a few at once.

A gateway claims batches whose input it can read and those whose input was deleted, and adopts the
answers written so far. One that stops releases its batches; one that dies leaves leases that
expire.

Rows are ordinary requests of the lowest priority: none begins while others wait for its model.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import chain
from types import ModuleType
from typing import IO, Any

from inference.batches import services
from inference.batches.files import InputFile, ResultFiles, ResultsTakenError
from inference.batches.records import CANCELLING, BatchRecord
from inference.gateway.batch_store import BatchStore
from inference.gateway.consumers.generate import unix_time_s
from inference.gateway.gateway import Gateway
from inference.gateway.request.attempt import until_ended
from inference.gateway.request.run import run_request
from inference.gateway.server.http_messages import pieces_of, spooled_file
from inference.protocol.delivery import MAX_DEATHS, broke_worker
from inference.protocol.heartbeat import ReplicaStatus
from inference.request_ids import new_request_id
from inference.wire import embeddings
from inference.wire.anthropic import batches as anthropic_batches
from inference.wire.anthropic import messages as anthropic_messages
from inference.wire.dialect import Encoder, RequestContext, with_escaped_line_ends
from inference.wire.errors import (
    ApiError,
    InternalError,
    InvalidRequestError,
    ModelNotFoundError,
    RequestFailedError,
    ServiceUnavailableError,
)
from inference.wire.openai import batches as openai_batches
from inference.wire.openai import chat as openai_chat
from inference.wire.openai import completions as openai_completions
from inference.wire.openai.batches import COUNTS, BatchLine, Unrun
from metering.ledger.entries import FINISHED
from metering.principal import Principal

ROWS_AT_ONCE = 4
PROGRESS_INTERVAL_S = 1.0
DIALECTS: dict[str, ModuleType] = {"openai": openai_batches, "anthropic": anthropic_batches}
MAX_BATCHES = 4
LOOK_FOR_BATCHES_S = 5.0
MAX_LOOKED_AT = 100
logger = logging.getLogger(__name__)


class BatchWorker:
    def __init__(self, gateway: Gateway, store: BatchStore) -> None:
        self._gateway = gateway
        self._store = store
        self._wanted = asyncio.Event()
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._loop: asyncio.Task[None] | None = None

    def wake(self) -> None:
        self._wanted.set()
        if self._loop is None or self._loop.done():
            self._loop = self._gateway.run_beside("batches", self._poll)

    async def _poll(self) -> None:
        while True:
            self._wanted.clear()
            with contextlib.suppress(ServiceUnavailableError):
                await self._claim()
                await self._store.forget_expired_files()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_FOR_BATCHES_S):
                    await self._wanted.wait()

    async def _claim(self) -> None:
        room = MAX_BATCHES - len(self._runs)
        if self._gateway.draining or room <= 0:
            return
        holder = self._gateway.gateway_id
        store = self._store
        for found in await store.query(services.batches_unclaimed, MAX_LOOKED_AT):
            if room == 0 or found.id in self._runs:
                continue
            if not store.files.has(found.input_file) and await store.is_kept(found):
                continue  # it lies on another gateway's disk
            batch = await store.query(services.batch_claim, batch_id=found.id, holder=holder)
            if batch is not None:
                room -= 1
                self._start(batch)

    def _start(self, batch: BatchRecord) -> None:
        run = BatchRun(self._gateway, self._store, batch)
        task = self._gateway.spawn(run.work())
        self._runs[batch.id] = task

        def forget(_: asyncio.Task[None]) -> None:
            del self._runs[batch.id]
            self._wanted.set()

        task.add_done_callback(forget)


class BatchRun:
    def __init__(self, gateway: Gateway, store: BatchStore, batch: BatchRecord) -> None:
        self._gateway = gateway
        self._store = store
        self._batch = batch
        self._dialect = DIALECTS[batch.dialect]
        self._begun: dict[str, BatchLine] = {}
        self._counts: Counter[str] = Counter(dict.fromkeys(COUNTS, 0))
        self._why_unrun: Unrun | None = "cancelled" if batch.status == CANCELLING else None
        self._is_lost = False
        """Another gateway has the lease."""
        self._writing = asyncio.Lock()
        self._suspect_runs = asyncio.Lock()
        """Held by a row whose engine has died."""
        self._held = {"batch_id": batch.id, "holder": gateway.gateway_id}
        self._results = ResultFiles(store.files, batch, gateway.gateway_id)

    async def work(self) -> None:
        waits = f"batch {self._batch.id} waits for another try"
        try:
            await self._work()
        except asyncio.CancelledError:
            with contextlib.suppress(ServiceUnavailableError):
                released = self._store.query(services.batch_release, **self._held)
                await asyncio.shield(released)
            raise
        except ServiceUnavailableError as error:
            logger.warning("%s: %s", waits, error.message)
        except OSError as error:
            # Answers that could not be stored are requested again.
            logger.warning("%s: its results cannot be written: %s", waits, error)
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
        while self._why_unrun is None and (line := lines.next_line()) is not None:
            self._begun[line.custom_id] = line
            try:
                await self._answer(line)
            except ExpiredError:
                self._why_unrun = "expired"

    async def _answer(self, line: BatchLine) -> None:
        batch = self._batch
        row = BatchRow(self._gateway, line, batch, alone=self._suspect_runs)
        try:
            body = await row.answer()
        except ApiError as error:
            written = [self._dialect.errored(line.custom_id, row.request_id, error)]
            kept = self._keep(line, batch.error_file, "num_failed", written)
        else:
            head, tail = self._dialect.around_answer(line.custom_id, row.request_id)
            answer = chain([head], pieces_of(body), [tail])
            kept = self._keep(line, batch.output_file, "num_completed", answer)
        await asyncio.shield(kept)  # already paid for

    async def _keep(
        self, line: BatchLine, file_id: str, count: str, written: Iterable[bytes]
    ) -> None:
        async with self._writing:
            await asyncio.to_thread(self._results.append, file_id, written)
            self._counts[count] += 1
            del self._begun[line.custom_id]

    async def _write_unrun(self, why: Unrun, lines: InputFile) -> None:
        def results() -> Iterator[bytes]:
            for line in chain(self._begun.values(), lines.rest()):
                self._counts[f"num_{why}"] += 1
                yield self._dialect.unrun(line.custom_id, self._batch.id, why)

        async with self._writing:
            await asyncio.to_thread(self._results.append, self._batch.error_file, results())

    async def _watch(self, rows: list[asyncio.Task[None]]) -> None:
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
        return await self._store.query(
            services.batch_progress, **self._held, counts=dict(self._counts)
        )

    async def _end(self, status: str, failure: str = "") -> None:
        if await self._status() is None:
            return  # another gateway has the lease and the files
        await asyncio.to_thread(self._results.finish)
        await self._store.keep_results(self._batch)
        counts = dict(self._counts)
        await self._store.query(
            services.batch_end, **self._held, status=status, counts=counts, failure=failure
        )


PARSERS: dict[str, Callable[[bytes, RequestContext], Any]] = {
    "/v1/chat/completions": openai_chat.parse,
    "/v1/completions": openai_completions.parse,
    "/v1/embeddings": embeddings.parse_openai,
    "/v1/messages": anthropic_messages.parse,
}
MAX_NEURON_LOSSES = 2
DEATHS = {
    **dict.fromkeys(("engine_crashed", "engine_hung", "device_fault"), ("an engine", MAX_DEATHS)),
    "neuron_lost": ("a neuron", MAX_NEURON_LOSSES),
}
"""Codes of deaths, and how many of them a row survives. A host may lose power more often than an
engine crashes, but a row whose text kills its neuron would kill one after the other."""
LOOK_FOR_ROOM_S = 0.5
MOST_PAUSE_S = 60.0


class ExpiredError(Exception):
    pass


class BatchRow:
    def __init__(
        self, gateway: Gateway, line: BatchLine, batch: BatchRecord, *, alone: asyncio.Lock
    ) -> None:
        """``alone`` is shared by the batch's rows: rows whose engine or neuron died run one at a
        time, so that the row that kills it does not take others with it."""
        self.request_id = new_request_id()
        self._alone = alone
        self._deaths: Counter[str] = Counter()
        self._gateway = gateway
        self._line = line
        self._batch = batch

    async def answer(self) -> IO[bytes]:
        batch, body = self._batch, self._line.body
        parse = partial(PARSERS[batch.endpoint], body, RequestContext())
        parsed = await self._gateway.images.parsed(parse, len(body))
        if getattr(parsed, "stream", False):
            raise InvalidRequestError("A request of a batch is not streamed.", param="stream")
        request = parsed.embedding if hasattr(parsed, "embedding") else parsed.generation
        while True:
            try:
                while not await self._has_room(request.model):
                    await self._pause(LOOK_FOR_ROOM_S)
                async with self._alone if self._deaths else nullcontext():
                    principal = await self._gateway.identifier.still(batch.account, batch.key)
                    return await self._run(request, parsed.body_encoder, principal)
            except ApiError as error:
                if error.retry_after_s is None:
                    raise
                await self._pause(error.retry_after_s)
                self.request_id = new_request_id()

    async def _run(
        self, request: Any, make_encoder: Callable[..., Encoder], principal: Principal
    ) -> IO[bytes]:
        call = self._gateway.open_call(request_id=self.request_id, endpoint=self._batch.endpoint)
        call.identify(principal)
        call.capture_request(self._line.body)
        call.yields = True
        call.discount_percent = self._gateway.config.batch_discount_percent
        written = spooled_file()
        try:
            async with run_request(self._gateway, call, request) as stream:
                encoder = make_encoder(request_id=self.request_id, clock=unix_time_s)
                async for events in until_ended(stream):
                    frames = [with_escaped_line_ends(encoder.encode(event)) for event in events]
                    written.writelines(frames)
                    call.capture_answer(b"".join(frames))
            call.outcome = FINISHED
        except ApiError as error:
            failed = self._blamed(error)
            call.fail(failed)
            raise failed from error
        finally:
            call.close()
        written.seek(0)
        return written

    def _blamed(self, error: ApiError) -> ApiError:
        died, most = DEATHS.get(error.code, ("", 0))
        if not died:
            return error
        self._deaths[died] += 1
        return RequestFailedError(broke_worker(died)) if self._deaths[died] > most else error

    async def _has_room(self, model: str) -> bool:
        """Leaves one place of a replica to others. A model that is not loaded has room."""
        try:
            entry = await self._gateway.catalogue.find(model)
        except ModelNotFoundError:
            return True
        replicas = (await self._gateway.liveness.placing_snapshot()).replicas_of(entry.name)
        ready = [one for one in replicas if one.status is ReplicaStatus.READY]
        return not ready or any(
            one.queue_depth == 0
            and (
                one.in_flight == 0
                or one.max_in_flight is None
                or one.in_flight + 1 < one.max_in_flight
            )
            for one in ready
        )

    async def _pause(self, wanted_s: float) -> None:
        left_s = self._batch.expires_at.timestamp() - time.time()
        if left_s <= 0:
            raise ExpiredError
        await asyncio.sleep(min(wanted_s, left_s, MOST_PAUSE_S))
