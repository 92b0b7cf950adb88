"""The gateway's way to the database: names to entries, starting a load or a pull. Off the event
loop.

Every failure becomes an ``ApiError``.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from fleet import selectors, services
from fleet.catalogue import CatalogueEntry
from fleet.errors import FleetError, UnknownNeuronError
from fleet.placement import Catalogue as FleetCatalogue
from fleet.placement import Load
from inference.gateway import pulls
from inference.gateway.database import DatabaseThreads
from inference.protocol.events import Failure
from inference.wire.errors import (
    ApiError,
    ModelNotFoundError,
    RequestFailedError,
    ServiceUnavailableError,
)
from inference.wire.ollama_pull import PullRequest, PullState
from metering.actor import GATEWAY, Actor

logger = logging.getLogger(__name__)

CACHE_S = 1.0


class Catalogue(Protocol):
    """Each method raises ``ApiError``: 503 database_unavailable when the database is away."""

    async def find(self, name: str) -> CatalogueEntry:
        """By name or alias. Raises ``ModelNotFoundError``."""
        ...

    async def entries(self) -> tuple[CatalogueEntry, ...]: ...

    async def by_name(self) -> FleetCatalogue:
        """Every enabled model: what placement weighs them by."""
        ...

    async def start_load(self, load: Load) -> None:
        """Idempotent: one active job for each model that is asked for."""
        ...

    async def start_pull(self, request: PullRequest, actor: Actor) -> PullState:
        """A download to a neuron, or the one of the same that is under way."""
        ...

    async def pull_state(self, before: PullState) -> PullState: ...


class DatabaseCatalogue:
    """Keeps what it read for ``CACHE_S``, so that the hot path stays on the event loop. While the
    database is away models that were asked for before go on being served."""

    def __init__(self) -> None:
        self._database = DatabaseThreads("catalogue")
        self._found: dict[str, tuple[float, CatalogueEntry]] = {}
        self._looking: dict[str, asyncio.Task[CatalogueEntry]] = {}
        """One look-up of a name at a time, for all who ask: a burst of requests may find that what
        was kept is old."""
        self._entries: tuple[CatalogueEntry, ...] = ()
        self._by_name: FleetCatalogue = {}

    async def find(self, name: str) -> CatalogueEntry:
        now_s = asyncio.get_running_loop().time()
        cached = self._found.get(name)
        if cached is not None and now_s - cached[0] < CACHE_S:
            return cached[1]
        looking = self._looking.get(name)
        if looking is None:
            self._looking[name] = looking = asyncio.create_task(self._look_up(name, now_s))
            looking.add_done_callback(lambda done: self._looked_up(name, done))
        return await asyncio.shield(looking)

    def _looked_up(self, name: str, done: asyncio.Task[CatalogueEntry]) -> None:
        """Whoever asked may have left; then nobody else takes the error."""
        del self._looking[name]
        if not done.cancelled():
            done.exception()

    async def _look_up(self, name: str, now_s: float) -> CatalogueEntry:
        cached = self._found.get(name)
        try:
            entry = await self._database.query(lambda: selectors.catalogue_find(name))
        except ServiceUnavailableError:
            if cached is None:
                raise
            self._found[name] = (now_s, cached[1])
            return cached[1]
        if entry is None:
            self._found.pop(name, None)
            raise ModelNotFoundError(name)
        self._found[name] = (now_s, entry)
        return entry

    async def entries(self) -> tuple[CatalogueEntry, ...]:
        return await self._database.query(selectors.catalogue_list)

    async def by_name(self) -> FleetCatalogue:
        """The same object as long as nothing was read anew; the last one while the database is
        away."""
        try:
            entries = await self.entries()
        except ServiceUnavailableError:
            if not self._entries:
                raise
            return self._by_name
        if entries is not self._entries:
            self._entries = entries
            self._by_name = {entry.name: entry for entry in entries}
        return self._by_name

    async def start_load(self, load: Load) -> None:
        try:
            await self._database.query(lambda: services.placed_load_start(actor=GATEWAY, load=load))
        except UnknownNeuronError:
            logger.info("%s has not been recorded yet; its heartbeat is ahead", load.neuron)
        except FleetError as error:
            raise _refusal(error) from error

    async def start_pull(self, request: PullRequest, actor: Actor) -> PullState:
        return await self._database.query(lambda: pulls.pull_start(request, actor))

    async def pull_state(self, before: PullState) -> PullState:
        return await self._database.query(lambda: pulls.pull_look(before))


def _refusal(error: FleetError) -> ApiError:
    return RequestFailedError(Failure(code=error.code, message=str(error)))
