"""The bound of a placement that knows the future: Belady's choice over all memory as one.

Evicts the model that is asked for furthest in the future. Its memory has no borders between cards,
loads take no time, and models in use may be evicted: so it is a bound on any placement, not a
rival.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass

from benchmarks.fleet_simulation.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Optimum:
    hit_share: float
    loads_an_hour: float


def belady(scenario: Scenario, *, counted_from_s: float = 0.0) -> Optimum:
    uses: defaultdict[str, list[float]] = defaultdict(list)
    for arrival in scenario.arrivals:
        uses[arrival.model].append(arrival.at_s)

    def next_use_s(model: str, now_s: float) -> float:
        times = uses[model]
        index = bisect_right(times, now_s)
        return times[index] if index < len(times) else float("inf")

    held: set[str] = set()
    held_bytes = num_hits = num_loads = num_counted = 0
    for arrival in scenario.arrivals:
        is_counted = arrival.at_s >= counted_from_s
        num_counted += is_counted
        if arrival.model in held:
            num_hits += is_counted
            continue
        num_loads += is_counted
        size = scenario.models[arrival.model].size_bytes
        while held_bytes + size > scenario.total_bytes:
            furthest = max(held, key=lambda model: (next_use_s(model, arrival.at_s), model))
            held.remove(furthest)
            held_bytes -= scenario.models[furthest].size_bytes
        held.add(arrival.model)
        held_bytes += size
    hours = (scenario.size.duration_s - counted_from_s) / 3600
    return Optimum(num_hits / max(1, num_counted), num_loads / hours)
