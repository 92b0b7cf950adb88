"""``python -m benchmarks.dashboard [--neurons 100] [--replicas 1000]``.

Times the whole answer to what a browser asks the dashboard for every two seconds: session, queries,
heartbeats out of Redis, rows and template, on a SQLite and a Redis of its own. Prints milliseconds:
of this process' CPU, which are the same on a busy machine, and on the wall's clock.
"""

from __future__ import annotations

import argparse
import statistics
import time

from benchmarks.dashboard.stage import reported_fleet

NUM_WARM_UPS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description="How long the dashboard takes to answer.")
    parser.add_argument("--neurons", type=int, default=100)
    parser.add_argument("--replicas", type=int, default=1000, help="of all neurons together")
    parser.add_argument("--times", type=int, default=20)
    given = parser.parse_args()
    with reported_fleet(num_neurons=given.neurons, num_replicas=given.replicas):
        _measure(given)


def _measure(given: argparse.Namespace) -> None:
    from django.contrib.auth.models import User
    from django.test import Client

    client = Client()
    client.force_login(User.objects.create_superuser("operator"))
    for path in ("/admin/dashboard/board", "/admin/"):
        cpu_ms, wall_ms = [], []
        for _ in range(NUM_WARM_UPS + given.times):
            cpu_s, wall_s = time.process_time(), time.perf_counter()
            response = client.get(path)
            cpu_ms.append(1000 * (time.process_time() - cpu_s))
            wall_ms.append(1000 * (time.perf_counter() - wall_s))
            assert response.status_code == 200, response.status_code
        print(
            f"{path}: CPU {_times(cpu_ms)}; wall {_times(wall_ms)}; "
            f"{len(response.content) / 1024:.0f} KiB, {given.neurons} neurons, "
            f"{given.replicas} replicas, {given.times} times"
        )


def _times(taken_ms: list[float]) -> str:
    counted = taken_ms[NUM_WARM_UPS:]
    return (
        f"median {statistics.median(counted):.0f} ms, least {min(counted):.0f}, "
        f"most {max(counted):.0f}"
    )


if __name__ == "__main__":
    main()
