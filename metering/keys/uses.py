"""Records when each key was last used: noted on the event loop, written in batches by a thread.

A key is written at most once a minute. What could not be written is tried again with the next
batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial

from inference.supervised_threads import SupervisedPool
from metering.errors import DirectoryUnavailableError
from metering.keys.store import KeyStore

logger = logging.getLogger(__name__)

NOTE_EVERY_S = 60.0
WRITE_EVERY_S = 10.0
CLOSE_TIMEOUT_S = 2.0
MAX_REMEMBERED = 10_000


class KeyUses:
    """Notes uses and writes them on a thread of its own, so that a write that waits for a lock
    holds up no look-up."""

    def __init__(self, store: KeyStore) -> None:
        self._store = store
        self._noted: dict[str, float] = {}
        """When each was noted last, Unix time; in that order."""
        self._unwritten: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._thread = SupervisedPool(1, thread_name_prefix="key-uses")
        self._task = asyncio.create_task(self._run(), name="key uses")

    async def stop(self) -> None:
        """Writes the remaining uses."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait({self._task})
        self._task = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.write()
        await close_thread(self._thread, self._store)

    def note(self, prefix: str, now_s: float) -> None:
        noted_s = self._noted.get(prefix)
        if noted_s is not None and now_s - noted_s < NOTE_EVERY_S:
            return
        self._noted.pop(prefix, None)
        self._noted[prefix] = now_s
        if len(self._noted) > MAX_REMEMBERED:
            self._noted.pop(next(iter(self._noted)))
        self._unwritten.add(prefix)

    async def write(self) -> None:
        batch, self._unwritten = self._unwritten, set()
        if not batch:
            return
        latest_s = max(self._noted.get(prefix, 0.0) for prefix in batch)
        write = partial(self._store.record_uses, batch, latest_s)
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, write)
        except DirectoryUnavailableError as error:
            logger.warning("when %d keys were used was not written: %s", len(batch), error)
            self._unwritten |= batch

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(WRITE_EVERY_S)
            try:
                await self.write()
            except Exception:
                logger.exception("when keys were used was not written")


async def close_thread(thread: SupervisedPool, store: KeyStore) -> None:
    """Closes its connection, unless a query that hangs keeps the thread."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await asyncio.get_running_loop().run_in_executor(thread, store.close)
    thread.shutdown(wait=False)
