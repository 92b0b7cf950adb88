"""One tick of the control over a small fleet."""

from __future__ import annotations

from typing import Any

from fleet.live.snapshot import FleetSnapshot
from fleet.placement import Load
from fleet.placement.decisions import Jobs, Observed, Plan
from fleet.placement.reconcile import reconcile
from tests.fleet.placement.fleets import card, entry, neuron

PINNED = entry("tiny", 10, pinned=True)
TWICE = entry("tiny", 10, min_replicas=2, max_replicas=3)
PLAIN = entry("tiny", 10)


def act(offered, snapshot: FleetSnapshot, **known: Any) -> tuple[Any, ...]:
    return plan(offered, snapshot, **known).actions


def plan(offered, snapshot: FleetSnapshot, **known: Any) -> Plan:
    observed = Observed(
        waiting=known.pop("waiting", {}), queue_long_s=known.pop("queue_long_s", {})
    )
    time_slices = known.pop("time_slices", ())
    return reconcile(
        offered, snapshot, jobs=Jobs(**known), observed=observed, time_slices=time_slices
    )


def load(on: str, *evict: str, model: str = "tiny") -> Load:
    return Load(neuron=on, model=model, devices=("cuda:0",), evict=evict)


def host(name: str = "a", *holds, free: float = 12, **changes: Any):
    return neuron(name, card(free=free), holds=tuple(holds), **changes)
