"""Runs, watches, cancels and stores responses in the background.

    start ─▶ run_request ─▶ events ─▶ encoder ─▶ store, log of events for clients that watch
    every second: leases renewed; responses cancelled or deleted through another gateway stop

A gateway that stops fails its runs with a message; one that dies leaves leases that expire.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from itertools import chain, repeat
from typing import Any

from inference.conversations import services
from inference.gateway.gateway import Gateway
from inference.gateway.request.attempt import until_ended
from inference.gateway.request.outcome import Call
from inference.gateway.request.run import run_request
from inference.gateway.response_store import ResponseStore
from inference.protocol.events import Accepted, Failure, Finished
from inference.wire.errors import (
    ApiError,
    InternalError,
    RequestFailedError,
    ServiceUnavailableError,
    shutting_down,
)
from inference.wire.responses.events import ResponseStreamEncoder
from inference.wire.responses.output import response_id
from inference.wire.responses.request import ResponsesRequest
from metering.ledger.entries import CANCELLED, FINISHED

logger = logging.getLogger(__name__)

WATCH_INTERVAL_S = 1.0
SAVE_AGAIN_AFTER_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""A short outage of the database must not cost an answer that took minutes."""


FRAME_END = b"\n\n"


class FrameLog:
    """A run never waits for its watchers."""

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._is_closed = False
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._frames)

    def put(self, frames: bytes) -> None:
        self._frames += [frame + FRAME_END for frame in frames.split(FRAME_END)[:-1]]
        self._wake()

    def close(self) -> None:
        self._is_closed = True
        self._wake()

    async def take(self, number: int) -> tuple[bytes, bool]:
        while number >= len(self._frames) and not self._is_closed:
            await self._changed.wait()
        return b"".join(self._frames[number:]), self._is_closed

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class BackgroundRun:
    def __init__(
        self,
        gateway: Gateway,
        store: ResponseStore,
        request: ResponsesRequest,
        *,
        call: Call,
        encoder: ResponseStreamEncoder,
    ) -> None:
        self.id = response_id(call.request_id)
        self.call = call
        self.log = FrameLog()
        self._gateway = gateway
        self._store = store
        self._request = request
        self._encoder = encoder
        self._is_cancelled = False
        self._is_ending = False
        self.task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        """Ignored while the store records the run's end: the store decides which came first."""
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
        with contextlib.suppress(ServiceUnavailableError):
            await self._store.query(services.response_progress, response=self._encoder.response)

    async def _keep(self, event: Finished) -> bool:
        self._is_ending = True
        return await self._save(self._encoder.response_after(event), self._encoder.next_number)

    async def _save(self, response: dict[str, Any], number: int) -> bool:
        """Tries again without end: while this gateway lives no other one records the end."""
        for pause_s in chain(SAVE_AGAIN_AFTER_S, repeat(SAVE_AGAIN_AFTER_S[-1])):
            try:
                return await self._store.query(
                    services.response_progress, response=response, last_event_number=number
                )
            except ServiceUnavailableError:
                logger.warning("response %s is not stored yet", self.id)
                await asyncio.sleep(pause_s)
        raise AssertionError("the pauses have no end")

    def _stop(self) -> None:
        self._is_cancelled = True
        cancelled = Failure(code="cancelled", message="The response was cancelled.")
        self._put(self._encoder.cancelled(RequestFailedError(cancelled)))

    async def _fail(self, error: ApiError) -> None:
        self.call.fail(error)
        self._put(self._encoder.failed(error))
        assert self._encoder.response is not None, "the encoder has failed"
        number = self._encoder.next_number - 1
        saving = self._gateway.spawn(self._save(self._encoder.response, number))
        await asyncio.wait([saving], timeout=SAVE_AGAIN_AFTER_S[0])


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
    ) -> FrameLog:
        call = call.hand_over()
        run = BackgroundRun(self._gateway, self._store, request, call=call, encoder=encoder)
        run.log.put(opening)
        self._runs[run.id] = run
        run.task = self._gateway.spawn(run.work())
        run.task.add_done_callback(lambda _: self._forget(run))
        if len(self._runs) == 1:
            self._watcher = asyncio.create_task(self._watch(), name="gateway background runs")
        return run.log

    def find(self, wanted_id: str) -> FrameLog | None:
        run = self._runs.get(wanted_id)
        return None if run is None else run.log

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
                active = await self._store.query(services.leases_renew, response_ids=watched)
            except ServiceUnavailableError:
                active = set(watched)
            except Exception:
                logger.exception("the leases of background responses are not renewed")
                active = set(watched)
            for lost_id in set(watched) - active:
                self.cancel(lost_id)
            await asyncio.sleep(WATCH_INTERVAL_S)
