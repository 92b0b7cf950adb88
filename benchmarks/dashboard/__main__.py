"""``python -m benchmarks.dashboard [--neurons 100] [--replicas 1000]``.

Times the whole answer to what a browser asks the dashboard for every two seconds: session, queries,
heartbeats out of Redis, rows and template, on a SQLite and a Redis of its own. Prints milliseconds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.dashboard.fleet import make_fleet
from helexa_site.bootstrap.redis_server import (
    configure_private_redis,
    discard_private_redis,
    wait_for_redis,
)

NUM_WARM_UPS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description="How long the dashboard takes to answer.")
    parser.add_argument("--neurons", type=int, default=100)
    parser.add_argument("--replicas", type=int, default=1000, help="of all neurons together")
    parser.add_argument("--times", type=int, default=20)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="helexa-dashboard-") as directory:
        server = configure_private_redis(Path(directory))
        with subprocess.Popen(server.command, stdout=subprocess.DEVNULL) as process:
            try:
                wait_for_redis(server.url, is_alive=lambda: process.poll() is None)
                _measure(Path(directory), server.url, given)
            finally:
                process.kill()
                process.wait()
                discard_private_redis(server, Path(directory))


def _measure(directory: Path, redis_url: str, given: argparse.Namespace) -> None:
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "helexa_site.settings",
        "DATABASE_URL": f"sqlite:///{directory / 'fleet.sqlite3'}",
        "REDIS_URL": redis_url,
        "HELEXA_SECRET_KEY": "of a benchmark alone",
        "HELEXA_ALLOWED_HOSTS": "testserver",
    }
    import django

    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import Client

    call_command("migrate", verbosity=0)
    make_fleet(num_neurons=given.neurons, num_replicas=given.replicas)
    client = Client()
    client.force_login(User.objects.create_superuser("operator"))
    for path in ("/admin/dashboard/board", "/admin/"):
        taken_ms = []
        for _ in range(NUM_WARM_UPS + given.times):
            started_s = time.perf_counter()
            response = client.get(path)
            taken_ms.append(1000 * (time.perf_counter() - started_s))
            assert response.status_code == 200, response.status_code
        counted = taken_ms[NUM_WARM_UPS:]
        print(
            f"{path}: median {statistics.median(counted):.0f} ms, least {min(counted):.0f}, "
            f"most {max(counted):.0f}, {len(response.content) / 1024:.0f} KiB, "
            f"{given.neurons} neurons, {given.replicas} replicas, {given.times} times"
        )


if __name__ == "__main__":
    main()
