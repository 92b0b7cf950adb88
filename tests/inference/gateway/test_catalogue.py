"""The gateway's reads and writes of the real database, and what it says when that is away."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from django.db import OperationalError

from fleet import selectors, services
from fleet.errors import ModelDisabledError, UnknownNeuronError
from fleet.placement import Load
from inference.gateway.catalogue import DatabaseCatalogue
from inference.wire.errors import ApiError, ModelNotFoundError, ServiceUnavailableError


def raising(error: Exception) -> Any:
    def call(*_args: Any, **_named: Any) -> Any:
        raise error

    return call


async def test_what_was_found_is_kept_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def find(name: str) -> Any:
        asked.append(name)
        return "entry" if name == "tiny" else None

    monkeypatch.setattr(selectors, "catalogue_find", find)
    catalogue = DatabaseCatalogue()
    assert [await catalogue.find("tiny") for _ in range(3)] == ["entry"] * 3
    assert asked == ["tiny"]
    for _ in range(2):
        with pytest.raises(ModelNotFoundError):
            await catalogue.find("huge")
    assert asked == ["tiny", "huge", "huge"], "a name that is not there must not fill the cache"


async def test_a_burst_looks_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    is_free = threading.Event()

    def find(name: str) -> Any:
        asked.append(name)
        is_free.wait(60)
        return "entry" if name == "tiny" else None

    monkeypatch.setattr(selectors, "catalogue_find", find)
    catalogue = DatabaseCatalogue()
    finding = [asyncio.create_task(catalogue.find(name)) for name in ["tiny", "huge"] * 10]
    await asyncio.sleep(0)
    finding[0].cancel()
    while len(asked) < 2:
        await asyncio.sleep(0.01)
    is_free.set()
    found = await asyncio.gather(*finding, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert found[2::2] == ["entry"] * 9
    assert all(isinstance(error, ModelNotFoundError) for error in found[1::2])
    assert sorted(asked) == ["huge", "tiny"]


async def test_the_database_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    away = raising(OperationalError("gone"))
    monkeypatch.setattr(selectors, "catalogue_find", away)
    monkeypatch.setattr(selectors, "catalogue_list", away)
    monkeypatch.setattr(services, "placed_load_start", away)
    catalogue = DatabaseCatalogue()
    for call in (
        catalogue.find("tiny"),
        catalogue.entries(),
        catalogue.start_load(Load(model="tiny", neuron="beast")),
    ):
        with pytest.raises(ServiceUnavailableError) as refused:
            await call
        assert (refused.value.status, refused.value.code) == (503, "database_unavailable")


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
