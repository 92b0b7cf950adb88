"""Placement by properties: what holds for every fleet."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from fleet import catalogue, placement
from fleet.catalogue import CatalogueEntry
from fleet.live import absences, measurements, snapshot
from fleet.live.snapshot import FleetSnapshot, NeuronView
from fleet.placement import Reject, Route, Wait, place
from fleet.placement.devices.sleeping import waking_bytes
from inference.protocol.heartbeat import ReplicaStatus
from tests.cases import each_case
from tests.fleet.placement.placing import (
    DRAINING,
    FAILED,
    LOADING,
    MEASURED,
    READY,
    RECOVERING,
    TINY,
    neuron,
    replica,
)

PURE = [Path(module.__file__ or "") for module in (absences, measurements, snapshot)] + [
    path
    for package in (catalogue, placement)
    for path in sorted(Path(package.__file__ or "").parent.rglob("*.py"))
]
NAMES = st.sampled_from(["a", "b", "c", "d"])


@st.composite
def fleets(draw: st.DrawFn) -> FleetSnapshot:
    names = draw(st.lists(NAMES, unique=True))
    return FleetSnapshot(neurons=tuple(draw(neurons(name)) for name in sorted(names)))


@st.composite
def neurons(draw: st.DrawFn, name: str) -> NeuronView:
    models = draw(st.lists(st.sampled_from(["tiny", "other"]), unique=True))
    replicas = [
        replica(
            name,
            draw(st.sampled_from(ReplicaStatus)),
            model=model,
            status_age_s=draw(st.floats(0, 100)),
            in_flight=draw(st.integers(0, 5)),
            queue_depth=draw(st.integers(0, 5)),
        )
        for model in models
    ]
    return neuron(
        name, *replicas, free_gib=draw(st.integers(0, 8)), devices=draw(st.integers(0, 1))
    )


ENTRIES = st.sampled_from([TINY, MEASURED])


@given(ENTRIES, fleets())
def test_decisions_are_about_what_is_there(entry: CatalogueEntry, fleet: FleetSnapshot) -> None:
    decision = place(entry, fleet)
    if isinstance(decision, Reject):
        codes = {"no_neuron", "not_enough_memory", "load_failed"}
        assert decision.code in codes
        assert decision.retry_after_s is not None
        assert decision.retry_after_s > 0
        return
    view = fleet.neuron(decision.neuron)
    assert view is not None
    assert decision.model == entry.name
    held = view.replica_of(entry.name)
    if isinstance(decision, Route):
        assert held is not None
        assert held.status is ReplicaStatus.READY
    elif isinstance(decision, Wait):
        assert held is not None
        assert held.status in {LOADING, RECOVERING, DRAINING, ReplicaStatus.ASLEEP}
    elif held is not None and held.status is ReplicaStatus.ASLEEP:
        (device,) = view.devices
        assert waking_bytes(held, "cpu") <= device.free_memory_bytes
    else:
        assert held is None or held.status is FAILED
        (device,) = view.devices
        assert decision.devices == ("cpu",)
        needed_bytes = entry.needed_memory_bytes(view.name, "cpu")
        assert (needed_bytes or 0) <= device.free_memory_bytes


@given(ENTRIES, fleets())
def test_a_ready_replica_is_always_used(entry: CatalogueEntry, fleet: FleetSnapshot) -> None:
    ready = [view for view in fleet.replicas_of(entry.name) if view.status is READY]
    decision = place(entry, fleet)
    assert isinstance(decision, Route) == bool(ready)
    if isinstance(decision, Route):
        chosen = next(view for view in ready if view.neuron == decision.neuron)
        assert chosen.num_requests == min(view.num_requests for view in ready)


@given(ENTRIES, fleets(), st.randoms())
def test_the_order_of_neurons_changes_nothing(entry, fleet: FleetSnapshot, random) -> None:
    shuffled = list(fleet.neurons)
    random.shuffle(shuffled)
    assert place(entry, FleetSnapshot(neurons=tuple(shuffled))) == place(entry, fleet)


@given(fleets())
def test_other_models_do_not_matter(fleet: FleetSnapshot) -> None:
    without = tuple(
        replace(view, replicas=tuple(r for r in view.replicas if r.model == "tiny"))
        for view in fleet.neurons
    )
    assert place(TINY, FleetSnapshot(neurons=without)) == place(TINY, fleet)


@each_case("path", PURE, ids=lambda path: path.stem)
def test_deciding_knows_neither_django_nor_redis_nor_torch(path: Path) -> None:
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
        )
    }
    assert not imported & {"django", "redis", "torch", "celery", "time", "asyncio", "logging"}
