"""Runs, watches, cancels and stores responses in the background.

    start ─▶ run_request ─▶ events ─▶ encoder ─▶ store, log of events for clients that watch
    every second: leases renewed; responses cancelled or deleted through another gateway stop

A gateway that stops fails its runs with a message; one that dies leaves leases that expire.

A ``FrameLog`` keeps the newest events of a run, up to ``MAX_KEPT_BYTES``. A run never waits for
those who watch it: one whose next event is gone is disconnected.

    put ─▶ | 17 | 18 | 19 | 20 | ─▶ take(18) ─▶ 18, 19, 20
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from itertools import chain, islice, repeat
from typing import Any

from inference.gateway.gateway import Gateway
from inference.gateway.request.attempt import until_ended
from inference.gateway.request.outcome import Call
from inference.gateway.request.run import run_request
from inference.gateway.responses.store import ResponseStore
from inference.protocol.events import Accepted, Failure, Finished
from inference.wire.errors import (
    ApiError,
    InternalError,
    RequestFailedError,
    ServiceUnavailableError,
    shutting_down,
)
from inference.wire.openai.responses.events import ResponseStreamEncoder
from inference.wire.openai.responses.output import response_id
from inference.wire.openai.responses.request import ResponsesRequest
from metering.ledger.entries import CANCELLED, FINISHED

logger = logging.getLogger(__name__)

WATCH_INTERVAL_S = 1.0
SAVE_AGAIN_AFTER_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""A short outage of the database must not cost an answer that took minutes."""


class BackgroundRun:
    def __init__(
        self,
        gateway: Gateway,
        store: ResponseStore,
        request: ResponsesRequest,
        *,
        call: Call,
        encoder: ResponseStreamEncoder,
        opening: bytes,
    ) -> None:
        self.id = response_id(call.request_id)
        self.call = call
        self._gateway = gateway
        self._store = store
        self._request = request
        self._encoder = encoder
        self.log = FrameLog()
        self.log.put(opening)
        self._is_cancelled = False
        self._is_ending = False
        self.task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        """Stops it; the store has recorded that already. Ignored where the store is just recording
        its end: the store decides which came first."""
        if self._is_ending:
            return
        self._is_cancelled = True
        if self.task is not None:
            self.task.cancel()

    async def work(self) -> None:
        try:
            await self._answer()
        except asyncio.CancelledError:
            if self._is_cancelled:
                self._stop()
            else:
                await self._fail(shutting_down())
        except ApiError as error:
            await self._fail(error)
        except Exception:
            logger.exception("response %s failed", self.id)
            await self._fail(InternalError())
        else:
            self.call.outcome = CANCELLED if self._is_cancelled else FINISHED

    async def _answer(self) -> None:
        async with run_request(self._gateway, self.call, self._request.generation) as stream:
            async for events in until_ended(stream):
                for event in events:
                    if isinstance(event, Finished) and not await self._keep(event):
                        self._stop()
                        return
                    self._put(self._encoder.encode(event))
                    if isinstance(event, Accepted):
                        await self._save_progress()

    def _put(self, frames: bytes) -> None:
        self.call.capture_answer(frames)
        self.log.put(frames)

    async def _save_progress(self) -> None:
        assert self._encoder.response is not None, "the encoder has opened"
        try:
            await self._store.progress(self._encoder.response)
        except ServiceUnavailableError:
            logger.warning("response %s: its progress is not stored", self.id)

    async def _keep(self, event: Finished) -> bool:
        self._is_ending = True
        response, number = self._encoder.response_after(event), self._encoder.next_number
        return await self._save(response, number, SAVE_AGAIN_AFTER_S)

    async def _save(self, response: dict[str, Any], number: int, pauses_s: Iterable[float]) -> bool:
        for pause_s in pauses_s:
            try:
                return await self._store.progress(response, number)
            except ServiceUnavailableError:
                logger.warning("response %s is not stored yet", self.id)
                await asyncio.sleep(pause_s)
        return await self._store.progress(response, number)

    def _stop(self) -> None:
        self._is_cancelled = True
        cancelled = Failure(code="cancelled", message="The response was cancelled.")
        self._put(self._encoder.cancelled(RequestFailedError(cancelled)))

    async def _fail(self, error: ApiError) -> None:
        self.call.fail(error)
        self._put(self._encoder.failed(error))
        assert self._encoder.response is not None, "the encoder has opened"
        response, number = self._encoder.response, self._encoder.next_number - 1
        try:
            await self._store.progress(response, number)
        except ServiceUnavailableError:
            logger.error("response %s failed (%s), which is not stored yet", self.id, error.code)
            # Without end: while this gateway lives no other one records the failure.
            pauses_s = chain(SAVE_AGAIN_AFTER_S, repeat(SAVE_AGAIN_AFTER_S[-1]))
            self._gateway.spawn(self._save(response, number, pauses_s))


class BackgroundRuns:
    def __init__(self, gateway: Gateway, store: ResponseStore) -> None:
        self._gateway = gateway
        self._store = store
        self._runs: dict[str, BackgroundRun] = {}
        self._watcher: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._runs)

    def start(
        self,
        request: ResponsesRequest,
        *,
        call: Call,
        encoder: ResponseStreamEncoder,
        opening: bytes,
    ) -> BackgroundRun:
        run = BackgroundRun(
            self._gateway,
            self._store,
            request,
            call=call.hand_over(),
            encoder=encoder,
            opening=opening,
        )
        self._runs[run.id] = run
        run.task = self._gateway.spawn(run.work())
        run.task.add_done_callback(lambda _: self._forget(run))
        if len(self._runs) == 1:
            self._watcher = asyncio.create_task(self._watch(), name="gateway background runs")
        return run

    def find(self, wanted_id: str) -> BackgroundRun | None:
        return self._runs.get(wanted_id)

    def cancel(self, cancelled_id: str) -> None:
        run = self._runs.get(cancelled_id)
        if run is not None:
            run.cancel()

    def _forget(self, run: BackgroundRun) -> None:
        run.log.close()
        run.call.close()
        del self._runs[run.id]
        if not self._runs and self._watcher is not None:
            self._watcher.cancel()

    async def _watch(self) -> None:
        while True:
            watched = list(self._runs)
            try:
                active = await self._store.renew_leases(watched)
            except ServiceUnavailableError:
                active = set(watched)
            except Exception:
                logger.exception("the leases of background responses are not renewed")
                active = set(watched)
            for lost_id in set(watched) - active:
                self.cancel(lost_id)
            await asyncio.sleep(WATCH_INTERVAL_S)


MAX_KEPT_BYTES = 4 * 1024 * 1024
FRAME_END = b"\n\n"


class EventsGoneError(Exception):
    def __init__(self, first: int) -> None:
        super().__init__(f"events before {first} are gone")
        self.first = first


class FrameLog:
    def __init__(self) -> None:
        self.is_closed = False
        self.first = 0
        self._frames: deque[bytes] = deque()
        self._kept_bytes = 0
        self._changed = asyncio.Event()

    @property
    def end(self) -> int:
        return self.first + len(self._frames)

    def put(self, frames: bytes) -> None:
        for frame in frames.split(FRAME_END)[:-1]:
            self._frames.append(frame + FRAME_END)
            self._kept_bytes += len(frame) + len(FRAME_END)
        while self._kept_bytes > MAX_KEPT_BYTES and len(self._frames) > 1:
            self._kept_bytes -= len(self._frames.popleft())
            self.first += 1
        self._wake()

    def close(self) -> None:
        self.is_closed = True
        self._wake()

    def check(self, number: int) -> None:
        """Raises ``EventsGoneError`` where that frame is no longer kept."""
        if number < self.first:
            raise EventsGoneError(self.first)

    async def take(self, number: int) -> tuple[bytes, bool]:
        """The frames from ``number`` on, once there are any, and whether none follows. Raises
        ``EventsGoneError``."""
        while number >= self.end and not self.is_closed:
            await self._changed.wait()
        self.check(number)
        return b"".join(islice(self._frames, number - self.first, None)), self.is_closed

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
