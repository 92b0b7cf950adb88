"""python -m benchmarks.fleet_simulation [--hours H] [--seed N]

Prints helexa's placement beside plain LRU over the same cards and beside Belady's choice over all
memory as one. Times are CPU time of this process.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.fleet_simulation.belady import belady
from benchmarks.fleet_simulation.policies import Costs, Helexa, PlainLru
from benchmarks.fleet_simulation.scenario import GIB, Scenario, Size, make_scenario
from benchmarks.fleet_simulation.simulator import GIVE_UP_S, Result, Simulator

WARM_UP_SHARE = 0.25


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet_simulation")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    scenario = make_scenario(Size(duration_s=arguments.hours * 3600), arguments.seed)
    warm_s = WARM_UP_SHARE * scenario.size.duration_s
    print(_described(scenario))
    lru = Simulator(scenario, PlainLru(scenario), counted_from_s=warm_s).run()
    helexa_policy = Helexa(scenario)
    ours = Simulator(scenario, helexa_policy, counted_from_s=warm_s).run()
    best = belady(scenario, counted_from_s=warm_s)
    hours = (scenario.size.duration_s - warm_s) / 3600
    print(f"{'':12}{'hits':>8}{'loads/h':>9}{'wait p50':>10}{'p99':>8}{'longest':>9}{'gave up':>9}")
    for name, result in (("plain LRU", lru), ("helexa", ours)):
        print(_row(name, result, hours))
    print(f"{'Belady':12}{best.hit_share:>8.2%}{best.loads_an_hour:>9.0f}")
    print(
        f"{1 - ours.num_loads / max(1, lru.num_loads):.1%} fewer cold loads than plain LRU; "
        f"{ours.num_loads / hours / best.loads_an_hour - 1:.1%} more than Belady's. The shortest "
        f"residency is {min(ours.residencies_s, default=0):.0f} s; nobody may wait for longer than "
        f"{GIVE_UP_S:.0f} s."
    )
    print(_costs(helexa_policy.costs))


def quantile(values: Sequence[float], share: float) -> float:
    """Nearest rank; 0 where there are none."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else 0.0


def _described(scenario: Scenario) -> str:
    models = sum(model.size_bytes for model in scenario.models.values())
    return (
        f"{len(scenario.cards)} neurons, {sum(map(len, scenario.cards.values()))} cards with "
        f"{scenario.total_bytes / GIB:,.0f} GiB; {len(scenario.models)} models of "
        f"{models / GIB:,.0f} GiB; {len(scenario.arrivals):,} requests, "
        f"{len(scenario.deaths)} cards die"
    )


def _row(name: str, result: Result, hours: float) -> str:
    waits = result.waits_s
    return (
        f"{name:12}{result.num_hits / max(1, result.num_requests):>8.2%}"
        f"{result.num_loads / hours:>9.0f}{quantile(waits, 0.5):>8.1f} s"
        f"{quantile(waits, 0.99):>6.1f} s{max(waits, default=0):>7.1f} s{result.num_given_up:>9}"
    )


def _costs(costs: Costs) -> str:
    lines = ["CPU time          number     mean      p50      p99"]
    for name, values, scale, unit in (
        ("route", costs.routes, 1e6, "us"),
        ("decision", costs.decisions, 1e6, "us"),
        ("new snapshot", costs.compilings, 1e3, "ms"),
        ("control tick", costs.ticks, 1e3, "ms"),
    ):
        mean = sum(values) / max(1, len(values))
        numbers = (mean, quantile(values, 0.5), quantile(values, 0.99))
        figures = "".join(f"{scale * number:>6.1f} {unit}" for number in numbers)
        lines.append(f"{name:14}{len(values):>10}{figures}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
