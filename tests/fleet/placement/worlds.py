"""Fleets and decisions in words, so that a case is a row of a table.

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

from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView
from fleet.placement import Load, Reject, Route
from fleet.placement.decisions import Sleep, Unload
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load_report import LoadFailure
from tests.fleet.placement.fleets import GIB, card, fleet, neuron, processor, replica, sleepy_report

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
