"""A real Redis for a test run, as ``serve`` configures one."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from helexa_site.bootstrap.guardian import Guardian
from helexa_site.bootstrap.redis_server import (
    configure_private_redis,
    discard_private_redis,
    wait_for_redis,
)


@contextlib.contextmanager
def running_redis(run_dir: Path) -> Iterator[str]:
    """A private Redis for the length of a ``with``; yields its URL.

    It dies with this process, even when that is killed.
    """
    server = configure_private_redis(run_dir)
    with (
        Guardian() as guardian,
        (run_dir / "redis.log").open("ab") as log,
        subprocess.Popen(
            server.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        ) as process,
    ):
        guardian.watch(process.pid)
        try:
            wait_for_redis(server.url, is_alive=lambda: process.poll() is None)
            yield server.url
        finally:
            process.kill()
            process.wait()
            guardian.release(process.pid)
            discard_private_redis(server, run_dir)
