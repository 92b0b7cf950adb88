"""Neurons that have just fallen silent: their replicas are expected back for a while.

    silent, not leaving ─▶ absent for GRACE_S ─▶ forgotten: its models are loaded elsewhere
                              └─▶ reports again: no action

A neuron that announced its shutdown is not waited for. Only state, no clock: the time is an
argument.
"""

from __future__ import annotations

from dataclasses import replace

from fleet.live.snapshot import FleetSnapshot, NeuronView

GRACE_S = 10.0
"""After its heartbeat has lapsed, which takes four seconds. Long enough for a stalled host or a
short network failure, and shorter than most loads."""


class Absences:
    def __init__(self) -> None:
        self._last_seen: dict[str, tuple[float, NeuronView]] = {}

    def noted(self, snapshot: FleetSnapshot, now_s: float) -> FleetSnapshot:
        for neuron in snapshot.neurons:
            self._last_seen[neuron.name] = (now_s, neuron)
        absent = []
        for name, (seen_s, neuron) in list(self._last_seen.items()):
            if now_s - seen_s >= GRACE_S or neuron.is_leaving or not neuron.is_admitted:
                del self._last_seen[name]
            elif snapshot.neuron(name) is None:
                absent.append(neuron)
        return replace(snapshot, absent=tuple(absent)) if absent else snapshot
