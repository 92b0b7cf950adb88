"""The gateway's reads and writes of the real database, its errors when that is unreachable, and its
loops, which begin again when they break."""

from __future__ import annotations

import asyncio
import threading
from unittest.mock import Mock

import pytest
from django.db import OperationalError

from fleet import selectors, services
from fleet.catalogue import CatalogueEntry
from fleet.errors import ModelDisabledError, UnknownNeuronError
from fleet.placement import Load
from fleet.selectors import CatalogueCache
from inference.gateway import database
from inference.gateway.background_loops import BackgroundLoops
from inference.gateway.database import DatabaseCatalogue, DatabaseThreads
from inference.supervised_threads import thread_problems
from inference.wire.errors import ApiError, ModelNotFoundError, ServiceUnavailableError
from tests.cases import each_case


class Rows:
    """The models in the database, by a clock that is set, and how often they were read."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.names = ["tiny"]
        self.num_reads = 0
        self.is_away = False
        self.may_answer = threading.Event()
        self.may_answer.set()

    def read(self) -> tuple[CatalogueEntry, ...]:
        assert self.may_answer.wait(60)
        self.num_reads += 1
        if self.is_away:
            raise OperationalError("gone")
        return tuple(
            CatalogueEntry(name=name, source="pypi:x", aliases=(f"{name}-alias",))
            for name in self.names
        )


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Rows:
    rows = Rows()
    monkeypatch.setattr(
        selectors, "catalogue_cache", CatalogueCache(rows.read, clock=lambda: rows.now_s)
    )
    return rows


@pytest.fixture
def catalogue(rows: Rows) -> DatabaseCatalogue:
    return DatabaseCatalogue()


async def test_entries_and_a_query_that_takes_too_long(
    rows: Rows, catalogue: DatabaseCatalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How long rows are kept is in ``tests/fleet/services/test_catalogue``."""
    for name in ("tiny", "tiny-alias"):
        assert (await catalogue.find(name)).name == "tiny"
    with pytest.raises(ModelNotFoundError):
        await catalogue.find("huge")
    assert await catalogue.by_name() is await catalogue.by_name()
    assert rows.num_reads == 1
    rows.names = ["tiny", "huge"]
    rows.now_s += 1.0
    assert [entry.name for entry in await catalogue.entries()] == ["tiny", "huge"]
    assert list(await catalogue.by_name()) == ["tiny", "huge"]
    never = asyncio.Event().wait
    monkeypatch.setattr(database, "DatabaseSyncToAsync", lambda query, **options: never)
    monkeypatch.setattr(database, "QUERY_TIMEOUT_S", 0.01)
    with pytest.raises(ServiceUnavailableError):
        await DatabaseThreads("test").query(lambda: 1)


async def test_bursts_and_refused_loads(
    rows: Rows, catalogue: DatabaseCatalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.may_answer.clear()
    finding = [asyncio.create_task(catalogue.find(name)) for name in ["tiny", "huge"] * 10]
    await asyncio.sleep(0)
    finding[0].cancel()
    await asyncio.sleep(0)
    rows.may_answer.set()
    found = await asyncio.gather(*finding, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert all(isinstance(entry, CatalogueEntry) for entry in found[2::2])
    assert all(isinstance(error, ModelNotFoundError) for error in found[1::2])
    assert rows.num_reads == 1
    # A load that the fleet refuses.
    monkeypatch.setattr(
        services, "placed_load_start", Mock(side_effect=ModelDisabledError("tiny is off"))
    )
    with pytest.raises(ApiError) as refused:
        await DatabaseCatalogue().start_load(Load(model="tiny", neuron="beast"))
    assert (refused.value.status, refused.value.code) == (404, "model_not_found")
    monkeypatch.setattr(
        services, "placed_load_start", Mock(side_effect=UnknownNeuronError("beast"))
    )
    await DatabaseCatalogue().start_load(Load(model="tiny", neuron="beast"))  # it is waited for


async def test_the_database_is_away(
    rows: Rows, catalogue: DatabaseCatalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.is_away = True
    monkeypatch.setattr(services, "placed_load_start", Mock(side_effect=OperationalError("gone")))
    for call in (
        catalogue.find("tiny"),
        catalogue.entries(),
        catalogue.start_load(Load(model="tiny", neuron="beast")),
    ):
        with pytest.raises(ServiceUnavailableError) as refused:
            await call
        assert (refused.value.status, refused.value.code) == (503, "database_unavailable")
    rows.is_away = False
    rows.now_s += 5.0
    before = await catalogue.by_name()
    rows.is_away = True
    rows.now_s += 5.0
    for _ in range(3):
        assert (await catalogue.find("tiny-alias")).name == "tiny"
        assert await catalogue.by_name() is before
        for unknown in (catalogue.find("huge"), catalogue.entries()):
            with pytest.raises(ServiceUnavailableError):
                await unknown
    rows.is_away, rows.names = False, ["huge"]
    rows.now_s += 1.0
    assert (await catalogue.find("huge")).name == "huge"


async def test_a_database_that_stands_still_is_waited_for_briefly(
    rows: Rows, catalogue: DatabaseCatalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "FIRST_WAIT_S", 0.05)
    monkeypatch.setattr(database, "READ_WAIT_S", 0.05)
    rows.may_answer.clear()
    with pytest.raises(ServiceUnavailableError) as refused:
        await catalogue.find("tiny")
    assert refused.value.code == "database_unavailable"
    rows.may_answer.set()
    async with asyncio.timeout(60):
        while not rows.num_reads:
            await asyncio.sleep(0.01)
    monkeypatch.setattr(database, "FIRST_WAIT_S", 60.0)
    assert (await catalogue.find("tiny")).name == "tiny"
    rows.may_answer.clear()
    rows.now_s += 2
    try:
        for wait_s in (0.05, 0.0):
            monkeypatch.setattr(database, "READ_WAIT_S", wait_s)
            async with asyncio.timeout(30):
                assert (await catalogue.find("tiny")).name == "tiny"
        with pytest.raises(ServiceUnavailableError):
            await catalogue.entries()
    finally:
        rows.may_answer.set()


class PanicError(BaseException):
    """Stands for PyO3's ``PanicException``."""


@each_case(
    "error",
    [PanicError("oh"), SystemExit(1), ValueError("no"), asyncio.CancelledError()],
    ids=["a panic", "an exit", "an error", "something else was cancelled"],
)
async def test_a_loop_that_breaks_is_named_and_begins_again(error: BaseException) -> None:
    loops, runs, errors = BackgroundLoops(), asyncio.Event(), [error]

    async def loop() -> None:
        if errors:
            raise errors.pop()
        runs.set()
        await asyncio.Event().wait()

    async def once() -> None:
        return

    task = loops.begin("watch", loop)
    await asyncio.wait_for(loops.begin("once", once), 60)
    await asyncio.wait_for(runs.wait(), 60)
    (problem,) = thread_problems()
    assert problem.startswith("the gateway's loop watch broke once lately")
    await asyncio.wait_for(loops.stop(), 60)
    assert (task.cancelled(), thread_problems()) == (True, [])
