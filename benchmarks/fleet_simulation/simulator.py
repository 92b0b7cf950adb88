"""Runs one policy over a scenario, event by event.

    arrival ─▶ a ready replica ─▶ answered after a while
          └──▶ waits ─▶ the policy loads its model ─▶ ready ─▶ all that waited are served

Events are in a heap by time. A second apart, waiting requests ask the policy again, as gateways do;
every few seconds the control ticks.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from dataclasses import dataclass, field

from benchmarks.fleet_simulation.policies import Policy
from benchmarks.fleet_simulation.scenario import CARD_AWAY_S, Arrival, Death, Scenario
from benchmarks.fleet_simulation.state import SimFleet, SimReplica
from fleet.placement.plan import Waiting

LOOK_S = 1.0
TICK_EVERY_LOOKS = 5
GIVE_UP_S = 600.0
"""How long a request waits, as at a gateway."""


@dataclass(slots=True)
class Result:
    num_requests: int = 0
    num_hits: int = 0
    num_loads: int = 0
    num_given_up: int = 0
    num_placed_again: int = 0
    waits_s: list[float] = field(default_factory=list)
    """How long every request waited that was served."""
    residencies_s: list[float] = field(default_factory=list)
    """How long each evicted or displaced replica had been ready."""


@dataclass(frozen=True, slots=True)
class _Ready:
    replica: SimReplica


@dataclass(frozen=True, slots=True)
class _Answered:
    replica: SimReplica
    arrival: Arrival


@dataclass(frozen=True, slots=True)
class _Back:
    death: Death


class _Look:
    pass


_Event = Arrival | Death | _Ready | _Answered | _Back | _Look


class Simulator:
    def __init__(self, scenario: Scenario, policy: Policy, *, counted_from_s: float = 0.0) -> None:
        """What comes before ``counted_from_s`` warms the fleet up."""
        self._scenario = scenario
        self._policy = policy
        self._counted_from_s = counted_from_s
        self._fleet = SimFleet(scenario)
        self._waiting: defaultdict[str, deque[Arrival]] = defaultdict(deque)
        self._events: list[tuple[float, int, _Event]] = []
        self._num_events = 0
        self._num_looks = 0
        self.result = Result()

    def run(self) -> Result:
        for arrival in self._scenario.arrivals:
            self._push(arrival.at_s, arrival)
        for death in self._scenario.deaths:
            self._push(death.at_s, death)
        self._push(LOOK_S, _Look())
        while self._events:
            now_s, _, event = heapq.heappop(self._events)
            if now_s > self._scenario.size.duration_s:
                break
            self._handle(event, now_s)
        return self.result

    def _push(self, at_s: float, event: _Event) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (at_s, self._num_events, event))

    def _handle(self, event: _Event, now_s: float) -> None:
        match event:
            case Arrival():
                self._arrive(event, now_s)
            case _Answered():
                event.replica.in_flight -= 1
                event.replica.last_used_s = now_s
                if event.replica.is_draining and event.replica.in_flight == 0:
                    self._remove(event.replica, now_s)
            case _Ready():
                if self._is_there(event.replica):
                    self._serve_waiting(event.replica.model.name, now_s)
            case Death():
                self._die(event, now_s)
            case _Back():
                self._fleet.dead.discard((event.death.neuron, event.death.card))
            case _Look():
                self._look(now_s)

    def _arrive(self, arrival: Arrival, now_s: float) -> None:
        if now_s >= self._counted_from_s:
            self.result.num_requests += 1
        replica = self._ready(arrival.model, now_s)
        if replica is not None:
            self.result.num_hits += now_s >= self._counted_from_s
            self._serve(arrival, replica, now_s)
            return
        self._waiting[arrival.model].append(arrival)
        if len(self._waiting[arrival.model]) == 1:
            self._try_to_load(arrival.model, now_s)

    def _look(self, now_s: float) -> None:
        self._num_looks += 1
        if self._num_looks % TICK_EVERY_LOOKS == 0:
            self._tick(now_s)
        for model in sorted(self._waiting, key=lambda name: self._waiting[name][0].at_s):
            waiting = self._waiting[model]
            while waiting and now_s - waiting[0].at_s > GIVE_UP_S:
                waiting.popleft()
                self.result.num_given_up += 1
            if not waiting:
                del self._waiting[model]
            elif self._ready(model, now_s) is not None:
                self._serve_waiting(model, now_s)
            else:
                self._try_to_load(model, now_s)
        self._push(now_s + LOOK_S, _Look())

    def _tick(self, now_s: float) -> None:
        waiting = {
            model: Waiting(num_requests=len(arrivals), oldest_s=now_s - arrivals[0].at_s)
            for model, arrivals in self._waiting.items()
            if arrivals
        }
        for neuron, model in self._policy.tick(self._fleet, waiting, now_s):
            replica = self._fleet.replicas[neuron].get(model)
            if replica is not None:
                replica.is_draining = True
                if replica.in_flight == 0:
                    self._remove(replica, now_s)

    def _try_to_load(self, model: str, now_s: float) -> None:
        if self._fleet.of_model(model):
            return  # it loads, or drains
        start = self._policy.load_for(model, self._fleet, now_s)
        if start is None:
            return
        here = self._fleet.replicas[start.neuron]
        if any(name in here and here[name].in_flight for name in start.evict):
            return  # lost its room: the next snapshot places it
        for name in start.evict:
            if name in here:
                self._remove(here[name], now_s)
        wanted = self._scenario.models[model]
        for card in start.cards:
            free = self._fleet.free_bytes(start.neuron, card)
            if (start.neuron, card) in self._fleet.dead or free < wanted.device_bytes:
                return
        replica = SimReplica(
            neuron=start.neuron,
            model=wanted,
            cards=start.cards,
            since_s=now_s,
            ready_at_s=now_s + wanted.load_s,
        )
        self._fleet.add(replica)
        self.result.num_loads += now_s >= self._counted_from_s
        self._push(replica.ready_at_s, _Ready(replica))

    def _ready(self, model: str, now_s: float) -> SimReplica | None:
        return next((r for r in self._fleet.of_model(model) if r.is_ready(now_s)), None)

    def _serve_waiting(self, model: str, now_s: float) -> None:
        replica = self._ready(model, now_s)
        if replica is not None:
            for arrival in self._waiting.pop(model, ()):
                self._serve(arrival, replica, now_s)

    def _serve(self, arrival: Arrival, replica: SimReplica, now_s: float) -> None:
        replica.in_flight += 1
        replica.last_used_s = now_s
        if arrival.at_s >= self._counted_from_s:
            self.result.waits_s.append(now_s - arrival.at_s)
        self._push(now_s + arrival.answer_s, _Answered(replica, arrival))

    def _remove(self, replica: SimReplica, now_s: float) -> None:
        if self._is_there(replica):
            self._fleet.remove(replica)
            if now_s >= self._counted_from_s:
                self.result.residencies_s.append(now_s - replica.ready_at_s)

    def _is_there(self, replica: SimReplica) -> bool:
        return self._fleet.replicas[replica.neuron].get(replica.model.name) is replica

    def _die(self, death: Death, now_s: float) -> None:
        """Running answers fail; waiting requests are placed by the next snapshot."""
        self._fleet.dead.add((death.neuron, death.card))
        self._push(now_s + CARD_AWAY_S, _Back(death))
        here = self._fleet.replicas[death.neuron]
        for name, replica in list(here.items()):
            if death.card in replica.cards:
                self._fleet.remove(replica)
                self.result.num_placed_again += len(self._waiting.get(name, ()))
