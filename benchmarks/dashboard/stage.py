"""A database, a Redis and a reported fleet of a benchmark's own."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.dashboard.fleet import make_fleet
from helexa_site.bootstrap.private_redis.redis_server import (
    configure_private_redis,
    discard_private_redis,
    wait_for_redis,
)


@contextmanager
def reported_fleet(*, num_neurons: int, num_replicas: int) -> Iterator[None]:
    """Django is set up over a SQLite and a Redis that hold that fleet, until the block's end."""
    with tempfile.TemporaryDirectory(prefix="helexa-fleet-") as name:
        directory = Path(name)
        server = configure_private_redis(directory)
        with subprocess.Popen(server.command, stdout=subprocess.DEVNULL) as process:
            try:
                wait_for_redis(server.url, is_alive=lambda: process.poll() is None)
                _set_up_django(directory, server.url)
                make_fleet(num_neurons=num_neurons, num_replicas=num_replicas)
                yield
            finally:
                process.kill()
                process.wait()
                discard_private_redis(server, directory)


def _set_up_django(directory: Path, redis_url: str) -> None:
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "helexa_site.settings",
        "DATABASE_URL": f"sqlite:///{directory / 'fleet.sqlite3'}",
        "REDIS_URL": redis_url,
        "HELEXA_SECRET_KEY": "of a benchmark alone",
        "HELEXA_ALLOWED_HOSTS": "testserver",
    }
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
