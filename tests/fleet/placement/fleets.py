"""Builders of catalogue entries, of models' costs and of fleets, with sizes in GiB and a card by
default; one tick of the control; and fleets and decisions in words, so that a case is a row:

    a 2 12/16 cpu60 tiny,busy old,used=30; b 4 draining

is host ``a`` with 2 GiB free on its first card of 24 GiB, 12 of 16 on its second one and 60 of its
processors, where ``tiny`` is in use and ``old`` was used 30 s ago; and ``b``, which drains. A
replica is ready, idle for ten minutes, and takes ten GiB of the first card, where nothing else is
written. One that is ``able`` can sleep, and one that ``slept`` does: it takes one GiB of the card
and nine of the host, and ten of the card awake.
"""

from __future__ import annotations

import re
from typing import Any

from fleet.catalogue import CatalogueEntry
from fleet.catalogue.entry import DeviceKind, MeasuredLoad
from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView
from fleet.placement import Catalogue, Load, Reject, Route
from fleet.placement.decisions import Jobs, Observed, Plan, Sleep, Unload
from fleet.placement.needs import BY_KIND, Speed, StageDevice
from fleet.placement.reconcile import reconcile
from inference.loading.model_costs import Kind, ModelCosts
from inference.protocol.heartbeat import DeviceInfo, ReplicaStatus
from inference.protocol.load_report import (
    AsleepBytes,
    KindBytes,
    LayerCost,
    LoadFailure,
    LoadReport,
)
from tests.fleet.conftest import GIB, report

READY, LOADING = ReplicaStatus.READY, ReplicaStatus.LOADING
RECOVERING, DRAINING = ReplicaStatus.RECOVERING, ReplicaStatus.DRAINING
FAILED = ReplicaStatus.FAILED


def entry(name: str = "tiny", needs_gib: float | None = None, **changes: Any) -> CatalogueEntry:
    """``needs_gib``: of its weights, which were measured somewhere else; ``None``: never."""
    weights = None if needs_gib is None else int(needs_gib * GIB)
    values: dict[str, Any] = {"source": f"huggingface:org/{name}", "weight_bytes": weights}
    return CatalogueEntry(name=name, **values | changes)


def took(neuron: str, gib: float, kind: DeviceKind = "cuda") -> MeasuredLoad:
    nothing = dict.fromkeys(("process_bytes", "kv_token_bytes", "memory_correction_bytes"), 0)
    where = {"neuron": neuron, "device_kind": kind, "load_bytes": int(gib * GIB)}
    return MeasuredLoad(**where, **nothing, prefill_speed=None)


def catalogue(*entries: CatalogueEntry) -> Catalogue:
    return {entry.name: entry for entry in entries}


def loaded(decision: Any) -> Load:
    assert isinstance(decision, Load), decision
    return decision


def refused(decision: Any) -> Reject:
    assert isinstance(decision, Reject), decision
    return decision


def card(index: int = 0, *, free: float, total: float = 24, **changes: Any) -> DeviceInfo:
    sizes = {"total_memory_bytes": int(total * GIB), "free_memory_bytes": int(free * GIB)}
    return DeviceInfo(index=index, **{"kind": "cuda", "name": "a card"} | changes, **sizes)


def cards(*gib: float) -> list[DeviceInfo]:
    """Empty ones of these sizes."""
    return [card(index, free=size, total=size) for index, size in enumerate(gib)]


def processor(*, free: float, total: float = 128) -> DeviceInfo:
    return card(free=free, total=total, kind="cpu", name="a processor")


def replica(model: str, status: ReplicaStatus = READY, **changes: Any) -> ReplicaView:
    """Ready and idle for ten minutes on the first card, where it takes ten GiB. ``on`` names its
    neuron, ``gib`` its size."""
    gib = changes.pop("gib", 10)
    values: dict[str, Any] = {
        "neuron": changes.pop("on", "a"),
        "job_id": "job",
        "status_age_s": 600.0,
        "devices": ("cuda:0",),
        "memory_bytes": int(gib * GIB),
        "last_used_age_s": 600.0,
    }
    return ReplicaView(model=model, status=status, **values | changes)


def busy(model: str, **changes: Any) -> ReplicaView:
    return replica(model, **{"in_flight": 1, "last_used_age_s": 0.0} | changes)


def neuron(
    name: str, *devices: DeviceInfo, holds: tuple[ReplicaView, ...] = (), **changes: Any
) -> NeuronView:
    return NeuronView(
        name=name,
        epoch="epoch",
        version="0",
        devices=devices,
        replicas=tuple(sorted(holds, key=lambda view: view.model)),
        **changes,
    )


def fleet(*neurons: NeuronView, **changes: Any) -> FleetSnapshot:
    return FleetSnapshot(neurons=tuple(sorted(neurons, key=lambda view: view.name)), **changes)


def sleepy_report(gib: float = 10) -> LoadReport:
    """Of a model that takes ``gib``, and one GiB of that and nine of the host while it sleeps."""
    asleep = AsleepBytes(device_bytes=GIB, host_bytes=9 * GIB)
    sizes = {"load_seconds": 10.0, "actual_bytes": int(gib * GIB)}
    return report(device="cuda:0", asleep=asleep, stages=[], **sizes)


PINNED = entry("tiny", 10, pinned=True)
TWICE = entry("tiny", 10, min_replicas=2, max_replicas=3)
PLAIN = entry("tiny", 10)


def act(offered, snapshot: FleetSnapshot, **known: Any) -> tuple[Any, ...]:
    return plan(offered, snapshot, **known).actions


def plan(offered, snapshot: FleetSnapshot, **known: Any) -> Plan:
    seen = {name: known.pop(name, {}) for name in ("waiting", "queue_long_s")}
    slices = known.pop("time_slices", ())
    jobs, observed = Jobs(**known), Observed(**seen)
    return reconcile(offered, snapshot, jobs=jobs, observed=observed, time_slices=slices)


GB = 10**9


def both(num_bytes: float) -> KindBytes:
    return KindBytes(int(num_bytes), int(num_bytes))


def dense(gb: float, *, num_layers: int = 48, kv_token_bytes: int = 2048) -> ModelCosts:
    """A tenth of it is around the layers."""
    weight_bytes = 0.9 * gb * GB / num_layers
    layer = LayerCost(
        weight_bytes=both(weight_bytes),
        num_weights=int(weight_bytes),
        kv_token_bytes=both(kv_token_bytes),
    )
    return _costs(layer, num_layers, 0.1 * gb * GB, hidden_size=5120)


def mixture(gb: float, *, num_layers: int = 48, active_share: float = 1 / 16) -> ModelCosts:
    """A tenth of each layer is no expert's."""
    layer_bytes = 0.97 * gb * GB / num_layers
    layer = LayerCost(
        weight_bytes=both(0.1 * layer_bytes),
        expert_bytes=both(0.9 * layer_bytes),
        num_weights=int(0.1 * layer_bytes),
        num_expert_weights=int(0.9 * layer_bytes),
        kv_token_bytes=both(2048),
    )
    outer_bytes = 0.03 * gb * GB
    return _costs(layer, num_layers, outer_bytes, hidden_size=4096, active_share=active_share)


def _costs(layer: LayerCost, num_layers: int, outer_bytes: float, **changes: Any) -> ModelCosts:
    return ModelCosts(
        layers=(layer,) * num_layers,
        outer_bytes=both(outer_bytes),
        head_bytes=both(outer_bytes / 2),
        num_head_weights=int(outer_bytes / 2),
        context_tokens=32_768,
        **changes,
    )


def device(
    neuron: str, name: str, gb: float, *, gb_per_s: float | None = None, tera_flops: float = 0
) -> StageDevice:
    kind: Kind = "cpu" if name == "cpu" else "cuda"
    usual = BY_KIND[kind]
    bytes_per_s = usual.bytes_per_s if gb_per_s is None else gb_per_s * GB
    speed = Speed(bytes_per_s, tera_flops * 10**12 or usual.flops_per_s)
    where = {"neuron": neuron, "name": name, "kind": kind}
    return StageDevice(**where, free_bytes=int(gb * GB), speed=speed)


DEVICE = re.compile(r"(cpu)?([\d.]+)(?:/([\d.]+))?")
FLAGS: dict[str, dict[str, Any]] = {
    "draining": {"is_draining": True},
    "leaving": {"is_draining": True, "is_leaving": True},
    "refused": {"is_admitted": False},
    "unready": {"is_ready": False},
    "other-protocol": {"speaks_our_protocol": False},
    "broken-cards": {"cuda_unavailable": "reboot"},
}
NUMBERS = {
    "age": "status_age_s",
    "used": "last_used_age_s",
    "gib": "gib",
    "running": "in_flight",
    "queued": "queue_depth",
    "failures": "num_failed_loads",
    "refused-s": "sleep_refused_age_s",
}


def world(text: str, **changes: Any) -> FleetSnapshot:
    return fleet(*(host_of(one) for one in text.split(";") if one.strip()), **changes)


def host_of(text: str) -> NeuronView:
    name, *words = text.split()
    cards: list[Any] = []
    processors: list[Any] = []
    holds: list[ReplicaView] = []
    flags: dict[str, Any] = {}
    for word in words:
        if word in FLAGS:
            flags |= FLAGS[word]
        elif (found := DEVICE.fullmatch(word)) is not None:
            is_cpu, free, total = found[1], float(found[2]), float(found[3] or 0)
            if is_cpu:
                processors.append(processor(free=free, total=total or 128))
            else:
                cards.append(card(len(cards), free=free, total=total or max(free, 24)))
        else:
            holds.append(_replica(word, name))
    return neuron(name, *cards, *processors, holds=tuple(holds), **flags)


def _replica(text: str, on: str) -> ReplicaView:
    model, *words = text.split(",")
    changes: dict[str, Any] = {"on": on}
    for word in words:
        key, _, value = word.partition("=")
        if key == "busy":
            changes |= {"in_flight": 1, "last_used_age_s": 0.0}
        elif key == "able":
            changes["report"] = sleepy_report()
        elif key == "slept":
            changes |= {"status": ReplicaStatus.ASLEEP, "gib": 1, "host_memory_bytes": 9 * GIB}
            changes["report"] = sleepy_report()
        elif key == "code":
            changes["failure"] = LoadFailure(code=value, message="why")
        elif key == "on":
            changes["devices"] = tuple(value.split("+"))
        elif key == "spec":
            changes["spec_digest"] = value
        elif key in NUMBERS:
            number = None if value == "never" else float(value)
            changes[NUMBERS[key]] = int(value) if value.isdecimal() else number
        else:
            changes["status"] = ReplicaStatus(key)
    return replica(model, **changes)


def brief(decision: Any) -> str:
    """``load tiny a/cuda:0 -old``, ``route a``, ``wait a``, ``slice a``, a refusal's code."""
    match decision:
        case Route():
            return f"route {decision.neuron}"
        case Load():
            evicted = "".join(f" -{model}" for model in decision.evict)
            where = f"{decision.neuron}/{'+'.join(decision.devices)}"
            return f"load {decision.model} {where}{evicted}"
        case Reject():
            return decision.code
        case Unload() | Sleep():
            return f"{type(decision).__name__.lower()} {decision.model} {decision.neuron}"
        case _:
            return f"{'slice' if decision.needs_time_slice else 'wait'} {decision.neuron}"


def briefs(decisions: Any) -> str:
    return ", ".join(map(brief, decisions))
