"""Who decides: helexa's own functions, or plain LRU over the same cards."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.fleet_simulation.scenario import Scenario, SimModel
from benchmarks.fleet_simulation.state import SimFleet, SimReplica
from fleet.catalogue import CatalogueEntry
from fleet.live.snapshot import FleetSnapshot
from fleet.live.time_slices import TimeSlice
from fleet.placement import Catalogue, Load, place, route
from fleet.placement.devices.eviction_candidates import capacity_of
from fleet.placement.expected import with_load
from fleet.placement.plan import Jobs, Observed, Unload, Waiting
from fleet.placement.reconcile import reconcile

SNAPSHOT_S = 1.0
"""Neurons beat once a second."""


@dataclass(frozen=True, slots=True)
class Start:
    """A load to begin, once ``evict`` have left."""

    neuron: str
    cards: tuple[int, ...]
    evict: tuple[str, ...]


class Policy(Protocol):
    name: str

    def load_for(self, model: str, fleet: SimFleet, now_s: float) -> Start | None:
        """The load of a model that has no replica; ``None``: it is not loaded now."""
        ...

    def tick(
        self, fleet: SimFleet, waiting: Mapping[str, Waiting], now_s: float
    ) -> list[tuple[str, str]]:
        """(neuron, model) that are to drain."""
        ...


@dataclass(slots=True)
class Costs:
    """CPU seconds of each."""

    decisions: list[float] = field(default_factory=list)
    routes: list[float] = field(default_factory=list)
    compilings: list[float] = field(default_factory=list)
    """How long compiling each new snapshot took, once for all decisions on it."""
    ticks: list[float] = field(default_factory=list)


class Helexa:
    name = "helexa"

    def __init__(self, scenario: Scenario) -> None:
        self.catalogue: Catalogue = {
            model.name: CatalogueEntry(
                name=model.name,
                source=f"huggingface:sim/{model.name}",
                weight_bytes=model.size_bytes,
                min_devices=model.num_devices,
            )
            for model in scenario.models.values()
        }
        self.costs = Costs()
        self._time_slices: dict[TimeSlice, float] = {}
        self._seen: tuple[float, FleetSnapshot] | None = None

    def load_for(self, model: str, fleet: SimFleet, now_s: float) -> Start | None:
        snapshot = self._snapshot(fleet, now_s)
        entry = self.catalogue[model]
        self._time_route(entry, snapshot)
        began_s = time.process_time()
        decision = place(entry, snapshot, catalogue=self.catalogue)
        self.costs.decisions.append(time.process_time() - began_s)
        if not isinstance(decision, Load):
            return None
        self._seen = (now_s, self._compiled(with_load(snapshot, decision, entry)))
        cards = tuple(int(name.removeprefix("cuda:")) for name in decision.devices)
        return Start(decision.neuron, cards, decision.evict)

    def tick(
        self, fleet: SimFleet, waiting: Mapping[str, Waiting], now_s: float
    ) -> list[tuple[str, str]]:
        snapshot = fleet.snapshot(now_s)
        time_slices = tuple(
            TimeSlice(
                model=time_slice.model,
                neuron=time_slice.neuron,
                devices=time_slice.devices,
                device_bytes=time_slice.device_bytes,
                evicted=time_slice.evicted,
                age_s=now_s - since_s,
            )
            for time_slice, since_s in self._time_slices.items()
        )
        began_s = time.process_time()
        plan = reconcile(
            self.catalogue,
            snapshot,
            jobs=Jobs(),
            observed=Observed(waiting=waiting),
            time_slices=time_slices,
        )
        self.costs.ticks.append(time.process_time() - began_s)
        ages = {time_slice.model: since_s for time_slice, since_s in self._time_slices.items()}
        self._time_slices = {
            TimeSlice(
                model=time_slice.model,
                neuron=time_slice.neuron,
                devices=time_slice.devices,
                device_bytes=time_slice.device_bytes,
                evicted=time_slice.evicted,
            ): ages.get(time_slice.model, now_s)
            for time_slice in plan.time_slices
        }
        self._seen = None
        return [(a.neuron, a.model) for a in plan.actions if isinstance(a, Unload)]

    def _snapshot(self, fleet: SimFleet, now_s: float) -> FleetSnapshot:
        if self._seen is None or now_s - self._seen[0] >= SNAPSHOT_S:
            snapshot = fleet.snapshot(now_s, tuple(self._time_slices))
            self._seen = (now_s, self._compiled(snapshot))
        return self._seen[1]

    def _compiled(self, snapshot: FleetSnapshot) -> FleetSnapshot:
        began_s = time.process_time()
        capacity_of(snapshot, self.catalogue)
        snapshot.replicas_of("")
        snapshot.neuron("")
        self.costs.compilings.append(time.process_time() - began_s)
        return snapshot

    def _time_route(self, entry: CatalogueEntry, snapshot: FleetSnapshot) -> None:
        began_s = time.process_time()
        route(entry, snapshot)
        self.costs.routes.append(time.process_time() - began_s)


class PlainLru:
    """Room where most is free; else the card of the least recently used idle replica, and on it
    the least recently used until it fits."""

    name = "plain LRU"

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario

    def load_for(self, model: str, fleet: SimFleet, now_s: float) -> Start | None:
        wanted = self._scenario.models[model]
        free = self._roomiest(fleet, wanted.device_bytes, wanted.num_devices)
        if free is not None:
            return free
        idle = sorted(
            (
                replica
                for here in fleet.replicas.values()
                for replica in here.values()
                if replica.in_flight == 0 and replica.is_ready(now_s)
            ),
            key=_used_s,
        )
        on_neuron: defaultdict[str, list[SimReplica]] = defaultdict(list)
        for replica in idle:
            on_neuron[replica.neuron].append(replica)
        tried: set[tuple[str, tuple[int, ...]]] = set()
        for oldest in idle:
            for cards in self._card_choices(oldest, wanted):
                if (oldest.neuron, cards) in tried:
                    continue
                tried.add((oldest.neuron, cards))
                leaving = self._evicted(
                    fleet, on_neuron[oldest.neuron], oldest.neuron, cards, wanted.device_bytes
                )
                if leaving is not None:
                    return Start(oldest.neuron, cards, leaving)
        return None

    def tick(
        self, fleet: SimFleet, waiting: Mapping[str, Waiting], now_s: float
    ) -> list[tuple[str, str]]:
        return []

    def _roomiest(self, fleet: SimFleet, each: int, num_devices: int) -> Start | None:
        best: tuple[int, Start] | None = None
        for neuron, cards in self._scenario.cards.items():
            free = sorted(
                (
                    (fleet.free_bytes(neuron, card), card)
                    for card in range(len(cards))
                    if (neuron, card) not in fleet.dead
                ),
                reverse=True,
            )[:num_devices]
            if len(free) == num_devices and free[-1][0] >= each:
                start = Start(neuron, tuple(sorted(card for _, card in free)), ())
                if best is None or free[-1][0] > best[0]:
                    best = (free[-1][0], start)
        return best[1] if best else None

    def _card_choices(self, replica: SimReplica, wanted: SimModel) -> list[tuple[int, ...]]:
        """The cards of its neuron that are large enough, its own among them."""
        totals = self._scenario.cards[replica.neuron]
        large = [card for card, total in enumerate(totals) if total >= wanted.device_bytes]
        own = [card for card in replica.cards if card in large]
        if wanted.num_devices == 1:
            return [(card,) for card in own]
        return [
            tuple(sorted((card, other))) for card in own[:1] for other in large if other != card
        ]

    def _evicted(
        self,
        fleet: SimFleet,
        idle: list[SimReplica],
        neuron: str,
        cards: tuple[int, ...],
        each: int,
    ) -> tuple[str, ...] | None:
        if any((neuron, card) in fleet.dead for card in cards):
            return None
        free = {card: fleet.free_bytes(neuron, card) for card in cards}
        gone = []
        for replica in idle:
            lacking = [card for card in cards if free[card] < each]
            if not lacking:
                break
            if any(card in lacking for card in replica.cards):
                gone.append(replica.model.name)
                for card in replica.cards:
                    if card in free:
                        free[card] += replica.model.device_bytes
        return tuple(gone) if all(size >= each for size in free.values()) else None


def _used_s(replica: SimReplica) -> float:
    return replica.ready_at_s if replica.last_used_s is None else replica.last_used_s
