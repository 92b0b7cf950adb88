"""One batch, while this gateway has its lease.

    lines ─▶ rows, a few at once ─▶ result files, line by line ─▶ ended
    every second: the lease renewed, counts published, a cancellation read

The gateway that claims it adopts the answers written so far, by any gateway. Its rows are ordinary
requests (keys, budgets, limits, ledger) of the lowest priority: no row begins while others wait for
its model, and every queue serves it last.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import chain
from types import ModuleType
from typing import IO, Any

from inference.batches import services
from inference.batches.files import InputFile, ResultFiles, ResultsTakenError
from inference.batches.records import CANCELLING, BatchRecord
from inference.gateway.batches.store import BatchStore, pieces_of
from inference.gateway.consumers.generate import unix_time_s
from inference.gateway.gateway import Gateway
from inference.gateway.request.attempt import until_ended
from inference.gateway.request.run import run_request
from inference.gateway.server.bodies import spooled_file
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.held import MAX_DEATHS, broke_worker
from inference.request_ids import new_request_id
from inference.wire.anthropic import batches as anthropic_batches
from inference.wire.anthropic import messages as anthropic_messages
from inference.wire.common.batch_lines import COUNTS, BatchLine, Unrun
from inference.wire.dialect import RequestContext, with_escaped_line_ends
from inference.wire.errors import (
    ApiError,
    InternalError,
    InvalidRequestError,
    ModelNotFoundError,
    RequestFailedError,
    ServiceUnavailableError,
)
from inference.wire.openai import batches as openai_batches
from inference.wire.openai import completions as openai_completions
from inference.wire.openai import embeddings as openai_embeddings
from inference.wire.openai.chat import request as openai_chat
from metering.ledger.entries import FINISHED
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
        try:
            await self._work()
        except asyncio.CancelledError:
            with contextlib.suppress(ServiceUnavailableError):
                await asyncio.shield(self._release())
            raise
        except ServiceUnavailableError as error:
            logger.warning("batch %s waits for another try: %s", self._batch.id, error.message)
        except OSError as error:
            # Answers that could not be stored are requested again.
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
        await asyncio.shield(kept)  # already paid for

    async def _principal(self) -> Principal:
        return await self._gateway.identifier.still(self._batch.account, self._batch.key)

    async def _keep(
        self, line: BatchLine, file_id: str, count: str, written: Iterable[bytes]
    ) -> None:
        async with self._writing:
            await asyncio.to_thread(self._results.append, file_id, written)
            self._counts[count] += 1
            del self._begun[line.custom_id]

    async def _write_unrun(self, why: Unrun, lines: InputFile) -> None:
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

    async def _release(self) -> None:
        await self._store.query(services.batch_release, **self._held)


PARSERS: dict[str, Callable[[bytes, RequestContext], Any]] = {
    "/v1/chat/completions": openai_chat.parse,
    "/v1/completions": openai_completions.parse,
    "/v1/embeddings": openai_embeddings.parse,
    "/v1/messages": anthropic_messages.parse,
}
ENGINE_ENDED = frozenset({"engine_crashed", "engine_hung", "device_fault"})
NEURON_LOST = "neuron_lost"
MAX_NEURON_LOSSES = 2
"""How often a row is retried after its neuron died. A host may lose power more often than an engine
crashes, but a row whose text kills its neuron would kill one after the other."""
LOOK_FOR_ROOM_S = 0.5
MOST_PAUSE_S = 60.0


class ExpiredError(Exception):
    pass


class BatchRow:
    def __init__(
        self, gateway: Gateway, line: BatchLine, *, endpoint: str, alone: asyncio.Lock
    ) -> None:
        """``alone`` is shared by the batch's rows: rows whose engine or neuron died run one at a
        time, so that the row that kills it does not take others with it."""
        self.request_id = new_request_id()
        self._alone = alone
        self._num_worker_deaths = 0
        self._num_neuron_losses = 0
        self._gateway = gateway
        self._line = line
        self._endpoint = endpoint

    async def answer(
        self, find_principal: Callable[[], Awaitable[Principal]], *, until_unix_s: float
    ) -> IO[bytes]:
        """The body of its answer, from its beginning. Transient failures are retried: an engine's
        death once, a neuron's twice. Raises ``ApiError``, ``ExpiredError``."""
        parse = partial(PARSERS[self._endpoint], self._line.body, RequestContext())
        parsed = await self._gateway.images.parsed(parse, len(self._line.body))
        if getattr(parsed, "stream", False):
            raise InvalidRequestError("A request of a batch is not streamed.", param="stream")
        while True:
            try:
                await self._wait_for_room(_inside(parsed).model, until_unix_s)
                is_suspect = self._num_worker_deaths + self._num_neuron_losses > 0
                async with self._alone if is_suspect else nullcontext():
                    return await self._run(parsed, await find_principal())
            except ApiError as error:
                if error.retry_after_s is None:
                    raise
                await _pause(error.retry_after_s, until_unix_s)
                self.request_id = new_request_id()

    async def _run(self, parsed: Any, principal: Principal) -> IO[bytes]:
        call = self._gateway.open_call(request_id=self.request_id, endpoint=self._endpoint)
        call.identify(principal)
        call.capture_request(self._line.body)
        call.yields = True
        call.discount_percent = self._gateway.config.batch_discount_percent
        written = spooled_file()
        try:
            async with run_request(self._gateway, call, _inside(parsed)) as stream:
                encoder = parsed.body_encoder(request_id=self.request_id, clock=unix_time_s)
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
        self._num_worker_deaths += error.code in ENGINE_ENDED
        self._num_neuron_losses += error.code == NEURON_LOST
        if error.code in ENGINE_ENDED and self._num_worker_deaths > MAX_DEATHS:
            return RequestFailedError(broke_worker("an engine"))
        if error.code == NEURON_LOST and self._num_neuron_losses > MAX_NEURON_LOSSES:
            return RequestFailedError(broke_worker("a neuron"))
        return error

    async def _wait_for_room(self, model: str, until_unix_s: float) -> None:
        while not await self._has_room(model):
            await _pause(LOOK_FOR_ROOM_S, until_unix_s)

    async def _has_room(self, model: str) -> bool:
        """One place is left to others, where a replica has more than one. A model that is not
        loaded counts as having room: it is loaded as for any request."""
        try:
            entry = await self._gateway.catalogue.find(model)
        except ModelNotFoundError:
            return True
        snapshot = await self._gateway.liveness.placing_snapshot()
        ready = [
            replica
            for replica in snapshot.replicas_of(entry.name)
            if replica.status is ReplicaStatus.READY
        ]
        return not ready or any(
            replica.queue_depth == 0
            and (
                replica.in_flight == 0
                or replica.max_in_flight is None
                or replica.in_flight + 1 < replica.max_in_flight
            )
            for replica in ready
        )


async def _pause(wanted_s: float, until_unix_s: float) -> None:
    left_s = until_unix_s - time.time()
    if left_s <= 0:
        raise ExpiredError
    await asyncio.sleep(min(wanted_s, left_s, MOST_PAUSE_S))


def _inside(parsed: Any) -> Any:
    return parsed.embedding if hasattr(parsed, "embedding") else parsed.generation
