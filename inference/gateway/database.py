"""The gateway's database access, off the event loop: every failure becomes an ``ApiError``.

Each user of ``DatabaseThreads`` has its own threads, so that a slow admin page does not hold up
requests.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import ParamSpec, TypeVar

from channels.db import DatabaseSyncToAsync
from django.db import DatabaseError, InterfaceError
from django.utils import timezone

from fleet import selectors, services
from fleet.catalogue import CatalogueEntry
from fleet.errors import CatalogueValueError, FleetError, UnknownModelError, UnknownNeuronError
from fleet.models import Download
from fleet.placement import Catalogue, Load
from fleet.selectors import OfferedModels
from inference.gateway.background_loops import SharedWork
from inference.protocol.events import Failure
from inference.supervised_threads import SupervisedPool
from inference.wire.errors import (
    InvalidRequestError,
    ModelNotFoundError,
    RequestFailedError,
    ServiceUnavailableError,
)
from inference.wire.ollama.models import PullRequest, PullState
from metering.audit import GATEWAY, Actor

logger = logging.getLogger(__name__)

NUM_THREADS = 2
QUERY_TIMEOUT_S = 30.0

Given = ParamSpec("Given")
Result = TypeVar("Result")


class DatabaseThreads:
    def __init__(self, name: str) -> None:
        self._threads = SupervisedPool(NUM_THREADS, thread_name_prefix=name)

    async def query(
        self, query: Callable[Given, Result], *args: Given.args, **named: Given.kwargs
    ) -> Result:
        """Raises ``ServiceUnavailableError`` (database_unavailable)."""
        call = DatabaseSyncToAsync(query, thread_sensitive=False, executor=self._threads)
        try:
            # wait_for, before Python 3.12, loses a cancellation that comes with the result.
            async with asyncio.timeout(QUERY_TIMEOUT_S):
                result: Result = await call(*args, **named)
        except (DatabaseError, InterfaceError, TimeoutError) as error:
            logger.warning("the database does not answer: %s", error)
            raise unavailable() from error
        return result


def unavailable() -> ServiceUnavailableError:
    return ServiceUnavailableError(
        "database_unavailable", "The database does not answer; try again shortly."
    )


READ_WAIT_S = 1.5
"""The wait where an earlier result exists. A database may accept connections and answer nothing."""
FIRST_WAIT_S = 4.5


class DatabaseCatalogue:
    """While the database is offline, cached models are served; else 503 database_unavailable."""

    def __init__(self) -> None:
        self.query = DatabaseThreads("catalogue").query
        self._reading = SharedWork(self._read)
        self._reading_since_s = 0.0
        self._last: OfferedModels | None = None

    async def find(self, name: str) -> CatalogueEntry:
        try:
            offered = await self._offered()
        except ServiceUnavailableError:
            known = None if self._last is None else self._last.by_any_name.get(name)
            if known is None:
                raise
            return known
        entry = offered.by_any_name.get(name)
        if entry is None:
            raise ModelNotFoundError(name)
        return entry

    async def entries(self) -> tuple[CatalogueEntry, ...]:
        return (await self._offered()).entries

    async def by_name(self) -> Catalogue:
        """The same object until the next read; the last one while the database is offline."""
        try:
            return (await self._offered()).by_name
        except ServiceUnavailableError:
            if self._last is None:
                raise
            return self._last.by_name

    async def _offered(self) -> OfferedModels:
        if (kept := selectors.catalogue_cache.kept()) is not None:
            self._last = kept
            return kept
        if not self._reading.is_running:
            self._reading_since_s = time.monotonic()
        wait_s = FIRST_WAIT_S if self._last is None else READ_WAIT_S
        try:
            async with asyncio.timeout(self._reading_since_s + wait_s - time.monotonic()):
                return await self._reading.join()
        except TimeoutError:
            raise unavailable() from None

    async def _read(self) -> OfferedModels:
        self._last = await self.query(selectors.catalogue_cache.current)
        return self._last

    async def start_load(self, load: Load) -> None:
        """Idempotent: one active job for each model that is asked for."""
        try:
            await self.query(services.placed_load_start, actor=GATEWAY, load=load)
        except UnknownNeuronError:
            logger.info("%s has not been recorded yet; its heartbeat is ahead", load.neuron)
        except FleetError as error:
            raise RequestFailedError(Failure(code=error.code, message=str(error))) from error

    async def cut_off_neuron(self, neuron: str, reason: str) -> None:
        try:
            await self.query(
                services.neuron_cut_off, actor=GATEWAY, neuron_name=neuron, reason=reason
            )
        except ServiceUnavailableError as error:
            logger.error("neuron %s is not cut off yet: %s", neuron, error.message)


def pull_start(request: PullRequest, actor: Actor) -> PullState:
    asked_at = timezone.now()
    try:
        if request.model is not None:
            download = services.model_download_start(actor=actor, model_name=request.model)
        else:
            assert request.source is not None, "a pull is of a model or of a source"
            download = services.download_start(
                actor=actor, source=request.source, file=request.file
            )
    except UnknownModelError as error:
        assert request.model is not None
        raise ModelNotFoundError(request.model) from error
    except CatalogueValueError as error:
        raise InvalidRequestError(str(error), param="model") from error
    except FleetError as error:
        raise ServiceUnavailableError(error.code, str(error)) from error
    return _state(download, is_ours=download.created_at >= asked_at)


def pull_look(before: PullState) -> PullState:
    download = selectors.download_find(before.id)
    if download is None:
        return replace(before, status="cancelled")
    return _state(download, is_ours=before.is_ours)


def pull_cancel(state: PullState, actor: Actor) -> None:
    download = selectors.download_find(state.id)
    if download is None or not download.is_active:
        return
    try:
        services.download_cancel(actor=actor, download=download)
    except FleetError as error:
        logger.warning("the download %s continues without its client: %s", state.id, error)


def pull_offer(request: PullRequest, state: PullState, actor: Actor) -> None:
    assert request.source is not None, "what the catalogue names is offered already"
    try:
        services.pulled_model_offer(
            actor=actor,
            source=request.source,
            file=request.file,
            called=request.called,
            num_bytes=state.bytes_total,
        )
    except CatalogueValueError as error:
        raise InvalidRequestError(str(error), param="model") from error


def _state(download: Download, *, is_ours: bool) -> PullState:
    return PullState(
        id=str(download.pk),
        where=download.neuron.name,
        status=download.status,
        is_ours=is_ours,
        bytes_done=download.bytes_done,
        bytes_total=download.bytes_total,
        failure_code=download.failure_code,
        failure_message=download.failure_message,
    )
