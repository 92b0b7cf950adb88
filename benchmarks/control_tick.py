"""``python -m benchmarks.control_tick [--neurons 100] [--replicas 1000]``.

What one second of the control costs while nothing changes: heartbeats read from Redis and compared
with the database, and the plan. Prints milliseconds of CPU, which other processes do not stretch.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from benchmarks.dashboard.stage import reported_fleet

NUM_WARM_UPS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description="What a tick of the control costs.")
    parser.add_argument("--neurons", type=int, default=100)
    parser.add_argument("--replicas", type=int, default=1000, help="of all neurons together")
    parser.add_argument("--times", type=int, default=10)
    given = parser.parse_args()
    with reported_fleet(num_neurons=given.neurons, num_replicas=given.replicas):
        from fleet import tasks

        for name, tick in (("heartbeats", tasks.record_heartbeats), ("plan", tasks.reconcile)):
            cost = _cost_ms(tick, given.times)
            print(
                f"{name}: median {statistics.median(cost):.0f} ms of CPU, most {max(cost):.0f}, "
                f"{given.neurons} neurons, {given.replicas} replicas, {given.times} times"
            )


def _cost_ms(tick: Callable[[], None], times: int) -> list[float]:
    taken_ms = []
    for _ in range(NUM_WARM_UPS + times):
        started_s = time.process_time()
        tick()
        taken_ms.append(1000 * (time.process_time() - started_s))
    return taken_ms[NUM_WARM_UPS:]


if __name__ == "__main__":
    main()
