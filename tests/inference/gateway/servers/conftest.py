"""Servers as processes, over a database that holds the default model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fleet.services import default_model_ensure
from metering.actor import COMMAND
from tests.inference.gateway.fake_neuron import FakeNeuron
from tests.inference.gateway.servers.running_server import (
    MAX_BODY_BYTES,
    MODEL,
    RunningServer,
    forget_neurons,
    gateway_environment,
    start,
)
from tests.migrated_database import MakeSqlite


@pytest.fixture(scope="module")
def environment(redis_server_url: str, make_sqlite: MakeSqlite) -> dict[str, str]:
    """A database of its own that holds the default model."""
    data_dir = make_sqlite(lambda: default_model_ensure(actor=COMMAND)).parent
    return gateway_environment(data_dir, redis_server_url, max_body_bytes=MAX_BODY_BYTES)


@pytest.fixture(scope="module")
def server(environment: dict[str, str], tmp_path_factory: Any) -> Iterator[RunningServer]:
    running = start(environment, tmp_path_factory.mktemp("log") / "server.log")
    yield running
    running.stop()


@pytest.fixture
def redis_url(redis_server_url: str) -> str:
    """Removes the neurons' keys alone: a running gateway keeps its own."""
    forget_neurons(redis_server_url)
    return redis_server_url


@pytest.fixture
def ready(neuron: FakeNeuron) -> FakeNeuron:
    neuron.model = MODEL
    return neuron
