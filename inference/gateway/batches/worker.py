"""Claims batches without a worker and runs them, a few at once.

A gateway claims those whose input it can read (all, where gateways share a directory) and those
whose input was deleted. One that stops releases its batches; one that dies leaves leases that
expire.
"""

from __future__ import annotations

import asyncio
import contextlib

from inference.batches import services
from inference.batches.records import BatchRecord
from inference.gateway.batches.run import BatchRun
from inference.gateway.batches.store import BatchStore
from inference.gateway.gateway import Gateway
from inference.wire.errors import ServiceUnavailableError

MAX_BATCHES = 4
LOOK_FOR_BATCHES_S = 5.0
MAX_LOOKED_AT = 100


class BatchWorker:
    def __init__(self, gateway: Gateway, store: BatchStore) -> None:
        self._gateway = gateway
        self._store = store
        self._wanted = asyncio.Event()
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._loop: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """Checks for a batch or an expired file at once, also one of a previous instance."""
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
