"""Builders of heartbeats and snapshots, and a Celery that only records the sent tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from kombu.exceptions import OperationalError
from msgspec import structs

from fleet import neuron_client, selectors, services, tasks
from fleet.live import reading as live
from fleet.live.reports import load_orders
from fleet.models import CatalogueModel
from fleet.watch import FleetWatch
from inference.protocol import keys
from inference.protocol.heartbeat import (
    PROTOCOL,
    DeviceInfo,
    HeldStage,
    HeldStageStatus,
    HostInfo,
    NeuronHeartbeat,
    ReplicaState,
    ReplicaStatus,
    encode_heartbeat,
)
from inference.version import VERSION
from metering.audit import COMMAND
from tests.fleet.commands.conftest import run_command  # noqa: F401
from tests.fleet.hub.conftest import hub  # noqa: F401
from tests.fleet.services.invited_hosts import shared_redis  # noqa: F401
from tests.inference.reports import engine_stats, load_report

GIB = 1024**3
NOW_UNIX_S = 1_700_000_000.0


device = partial(
    structs.replace,
    DeviceInfo(
        index=0,
        kind="cpu",
        name="a processor",
        total_memory_bytes=16 * GIB,
        free_memory_bytes=8 * GIB,
    ),
)
report = partial(
    load_report,
    dtype="bfloat16",
    num_parameters=1000,
    weight_bytes=2 * GIB,
    kv_bytes=GIB,
    num_kv_blocks=64,
    context_tokens=1024,
    vocab_size=100,
    load_seconds=1.5,
    generation_defaults={"temperature": 0.6, "top_k": 20},
)
# In its state for a minute.
replica = partial(
    ReplicaState,
    model="tiny",
    job_id="some-job",
    status=ReplicaStatus.READY,
    since_unix_s=NOW_UNIX_S - 60,
)
# The second of two stages, of a model that another neuron serves.
stage = partial(
    HeldStage,
    model="large",
    job_id="job",
    order="",
    engine_neuron="attic",
    index=1,
    num_stages=2,
    layers=(20, 32),
    device="cuda:0",
    status=HeldStageStatus.READY,
    since_unix_s=0.0,
    memory_bytes=3 * GIB,
)
HOST = HostInfo(
    hostname="beast.local",
    os="Linux",
    num_cores=8,
    total_memory_bytes=16 * GIB,
    free_memory_bytes=8 * GIB,
)


def heartbeat(name: str = "beast", **changes: Any) -> NeuronHeartbeat:
    values: dict[str, Any] = {
        "epoch": "epoch-1",
        "version": VERSION,
        "protocol": PROTOCOL,
        "started_unix_s": NOW_UNIX_S - 600,
        "time_unix_s": NOW_UNIX_S,
        "host": HOST,
        "devices": [device()],
        "replicas": [],
    }
    return NeuronHeartbeat(**{"name": name} | values | changes)


def ordered(beat: NeuronHeartbeat) -> NeuronHeartbeat:
    """The heartbeat, with replicas that the control has ordered."""
    orders = load_orders()
    replicas = [
        structs.replace(state, order=orders.order(neuron=beat.name, model=state.model))
        for state in beat.replicas
    ]
    return structs.replace(beat, replicas=replicas)


# The builders, for tests to ask for by one fixture.
BUILD = SimpleNamespace(
    device=device,
    report=report,
    stats=engine_stats,
    replica=replica,
    stage=stage,
    heartbeat=heartbeat,
)


@dataclass
class SentTasks:
    """Stands where Celery's ``send_task`` is. ``broker_is_away`` makes it fail as kombu does."""

    tasks: list[tuple[str, list[Any], dict[str, Any]]] = field(default_factory=list)
    broker_is_away: bool = False

    def send_task(self, name: str, args: list[Any], **options: Any) -> None:
        if self.broker_is_away:
            raise OperationalError("connection refused")
        self.tasks.append((name, args, options))


@pytest.fixture
def build() -> SimpleNamespace:
    return BUILD


@pytest.fixture
def publish(
    redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., NeuronHeartbeat]:
    """The neuron speaks: its heartbeat, with those changes, is in Redis."""
    monkeypatch.setattr(live, "redis_client", lambda: redis_db)

    def publish(*args: Any, **changes: Any) -> NeuronHeartbeat:
        beat = heartbeat(*args, **changes)
        redis_db.zadd(keys.NEURONS, {beat.name: beat.time_unix_s})
        redis_db.set(keys.heartbeat_key(beat.name), encode_heartbeat(ordered(beat)))
        return beat

    return publish


@pytest.fixture
def beat(publish: Callable[..., NeuronHeartbeat]) -> Callable[..., NeuronHeartbeat]:
    """The neuron speaks: into Redis, and recorded."""

    def beat(*args: Any, **changes: Any) -> NeuronHeartbeat:
        published = publish(*args, **changes)
        services.heartbeat_record(heartbeat=published)
        return published

    return beat


def offer(name: str = "tiny", **values: Any) -> CatalogueModel:
    """The catalogue has the model, of a wheel of its name by default."""
    values = {"name": name, "source": f"pypi:{name}"} | values
    return services.catalogue_model_create(actor=COMMAND, **values)


def change(model: CatalogueModel, **values: Any) -> CatalogueModel:
    """Changes the model as it is stored; returns it anew."""
    model = selectors.model_known(model.name)
    model.assign(values)
    services.catalogue_model_update(actor=COMMAND, model=model, changed_fields=list(values))
    return CatalogueModel.objects.get(pk=model.pk)


@pytest.fixture
def model() -> CatalogueModel:
    return offer()


@pytest.fixture(autouse=True)
def _nothing_seen_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the control remembers of one test's fleet is nothing to the next one's."""
    monkeypatch.setattr(tasks, "watch", FleetWatch())


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> SentTasks:
    tasks = SentTasks()
    monkeypatch.setattr(neuron_client, "app", tasks)
    return tasks


@pytest.fixture(autouse=True)
def _fresh_catalogue_cache() -> Iterator[None]:
    """Each test has its own database; the cache must not carry one into the next."""
    selectors.catalogue_cache_clear()
    yield
    selectors.catalogue_cache_clear()
