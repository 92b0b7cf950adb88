"""The gateway's reads and writes of the real database, and its errors when that is unreachable."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from django.db import OperationalError

from fleet import selectors, services
from fleet.catalogue import CatalogueEntry
from fleet.errors import ModelDisabledError, UnknownNeuronError
from fleet.live.catalogue_cache import CatalogueCache
from fleet.placement import Load
from inference.gateway import database
from inference.gateway import database as catalogue_module
from inference.gateway.database import DatabaseCatalogue, DatabaseThreads
from inference.wire.errors import ApiError, ModelNotFoundError, ServiceUnavailableError
from tests.cases import each_case


def raising(error: Exception) -> Any:
    def call(*_args: Any, **_named: Any) -> Any:
        raise error

    return call


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Rows:
    """The models in the database, and how often they were read."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.num_reads = 0
        self.is_away = False

    def read(self) -> tuple[CatalogueEntry, ...]:
        self.num_reads += 1
        if self.is_away:
            raise OperationalError("gone")
        return tuple(
            CatalogueEntry(name=name, source="pypi:x", aliases=(f"{name}-alias",))
            for name in self.names
        )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def rows(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Rows:
    rows = Rows("tiny")
    monkeypatch.setattr(selectors, "catalogue_cache", CatalogueCache(rows.read, clock=clock))
    return rows


async def test_what_was_found_is_kept_for_a_moment(rows: Rows) -> None:
    catalogue = DatabaseCatalogue()
    for name in ("tiny", "tiny-alias", "tiny"):
        assert (await catalogue.find(name)).name == "tiny"
    with pytest.raises(ModelNotFoundError):
        await catalogue.find("huge")
    assert await catalogue.by_name() is await catalogue.by_name()
    assert rows.num_reads == 1


@pytest.mark.parametrize("age_s", [0.0, 0.3, 0.999])
async def test_a_change_is_seen_everywhere_within_a_second(
    rows: Rows, clock: Clock, age_s: float
) -> None:
    """However old the cached rows were when another process made the change."""
    catalogue = DatabaseCatalogue()
    await catalogue.entries()
    clock.now_s += age_s
    await catalogue.find("tiny")
    rows.names = ["tiny", "huge"]  # another process commits
    clock.now_s += 1.0
    assert (await catalogue.find("huge")).name == "huge"
    assert [entry.name for entry in await catalogue.entries()] == ["tiny", "huge"]
    assert list(await catalogue.by_name()) == ["tiny", "huge"]
    assert selectors.catalogue_find("huge-alias") is not None
    assert rows.num_reads == 2


async def test_a_read_that_takes_long_is_as_old_as_its_beginning(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Rows("tiny")

    def read() -> tuple[CatalogueEntry, ...]:
        found = rows.read()
        rows.names = ["huge"]  # committed while the answer is on its way
        clock.now_s += 0.8
        return found

    monkeypatch.setattr(selectors, "catalogue_cache", CatalogueCache(read, clock=clock))
    catalogue = DatabaseCatalogue()
    await catalogue.find("tiny")
    clock.now_s += 0.2
    await catalogue.find("huge")


async def test_a_burst_looks_up_once(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    is_free = threading.Event()
    read = rows.read

    def slow() -> tuple[CatalogueEntry, ...]:
        is_free.wait(60)
        return read()

    monkeypatch.setattr(selectors, "catalogue_cache", CatalogueCache(slow))
    catalogue = DatabaseCatalogue()
    finding = [asyncio.create_task(catalogue.find(name)) for name in ["tiny", "huge"] * 10]
    await asyncio.sleep(0)
    finding[0].cancel()
    await asyncio.sleep(0)
    is_free.set()
    found = await asyncio.gather(*finding, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert all(isinstance(entry, CatalogueEntry) for entry in found[2::2])
    assert all(isinstance(error, ModelNotFoundError) for error in found[1::2])
    assert rows.num_reads == 1


async def test_the_database_is_away(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    rows.is_away = True
    monkeypatch.setattr(services, "placed_load_start", raising(OperationalError("gone")))
    catalogue = DatabaseCatalogue()
    for call in (
        catalogue.find("tiny"),
        catalogue.entries(),
        catalogue.start_load(Load(model="tiny", neuron="beast")),
    ):
        with pytest.raises(ServiceUnavailableError) as refused:
            await call
        assert (refused.value.status, refused.value.code) == (503, "database_unavailable")


async def test_what_was_there_is_served_while_the_database_is_away(
    rows: Rows, clock: Clock
) -> None:
    catalogue = DatabaseCatalogue(clock=clock)
    before = await catalogue.by_name()
    rows.is_away = True
    clock.now_s += 5.0
    for _ in range(3):
        assert (await catalogue.find("tiny-alias")).name == "tiny"
        assert await catalogue.by_name() is before
        for call in (catalogue.find("huge"), catalogue.entries()):
            with pytest.raises(ServiceUnavailableError):
                await call
    assert rows.num_reads == 2, "a database that is away is not asked for every request"
    rows.is_away, rows.names = False, ["huge"]
    clock.now_s += 1.0
    assert (await catalogue.find("huge")).name == "huge"


async def test_a_database_that_stands_still_is_waited_for_briefly(
    rows: Rows, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the query and answers nothing: the cached rows are served, and only callers who come
    while the read is young wait for it."""
    monkeypatch.setattr(catalogue_module, "FIRST_WAIT_S", 0.05)
    monkeypatch.setattr(catalogue_module, "READ_WAIT_S", 0.05)
    goes_on = threading.Event()
    read = rows.read
    catalogue = DatabaseCatalogue(clock=clock)

    def stalled() -> tuple[CatalogueEntry, ...]:
        assert goes_on.wait(60)
        return read()

    monkeypatch.setattr(selectors, "catalogue_cache", CatalogueCache(stalled, clock=clock))
    try:
        with pytest.raises(ServiceUnavailableError) as refused:
            await catalogue.find("tiny")
        assert refused.value.code == "database_unavailable"
        goes_on.set()
        async with asyncio.timeout(60):
            while not await _is_found(catalogue):
                await asyncio.sleep(0.01)
        goes_on.clear()
        clock.now_s += 2
        assert (await catalogue.find("tiny")).name == "tiny"
        before_s = asyncio.get_running_loop().time()
        monkeypatch.setattr(catalogue_module, "READ_WAIT_S", 0.0)
        assert (await catalogue.find("tiny")).name == "tiny"
        assert asyncio.get_running_loop().time() - before_s < 30
        with pytest.raises(ServiceUnavailableError):
            await catalogue.entries()
    finally:
        goes_on.set()


async def _is_found(catalogue: DatabaseCatalogue) -> bool:
    try:
        return bool(await catalogue.find("tiny"))
    except ServiceUnavailableError:
        return False


async def test_a_load_that_the_fleet_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "placed_load_start", raising(ModelDisabledError("tiny is off")))
    with pytest.raises(ApiError) as refused:
        await DatabaseCatalogue().start_load(Load(model="tiny", neuron="beast"))
    assert (refused.value.status, refused.value.code) == (404, "model_not_found")


async def test_a_neuron_that_is_not_recorded_yet_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(services, "placed_load_start", raising(UnknownNeuronError("beast")))
    await DatabaseCatalogue().start_load(Load(model="tiny", neuron="beast"))


@each_case("num_turns", range(6))
async def test_a_cancellation_that_comes_with_the_result(
    monkeypatch: pytest.MonkeyPatch, num_turns: int
) -> None:
    """``num_turns`` of the event loop between the two; after some the waiter has ended."""
    found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def wait() -> int:
        return await found

    def stand_in(query: object, **options: object) -> Callable[[], Awaitable[int]]:
        return wait

    monkeypatch.setattr(database, "DatabaseSyncToAsync", stand_in)
    waiter = asyncio.create_task(DatabaseThreads("test").query(lambda: 1))
    for _ in range(3):
        await asyncio.sleep(0)
    found.set_result(1)
    for _ in range(num_turns):
        await asyncio.sleep(0)
    if waiter.cancel():
        with pytest.raises(asyncio.CancelledError):
            await waiter
    else:
        assert await waiter == 1


async def test_a_query_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never() -> int:
        return await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(database, "DatabaseSyncToAsync", lambda query, **options: never)
    monkeypatch.setattr(database, "QUERY_TIMEOUT_S", 0.01)
    with pytest.raises(ServiceUnavailableError):
        await DatabaseThreads("test").query(lambda: 1)
