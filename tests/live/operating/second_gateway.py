"""A second gateway process, under uvicorn, beside a running server: the same Redis and database."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import httpx

from benchmarks.ports import free_port
from tests.live.serving import REPOSITORY_DIR, WAIT_TIMEOUT_S, Serve, wait_until


@contextlib.contextmanager
def second_gateway(serve: Serve, **settings: str) -> Iterator[str]:
    """Its URL; ``settings`` are environment variables of its own."""
    port = free_port()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "uvicorn", "helexa_site.asgi:application"),
            *("--port", str(port), "--log-level", "warning"),
        ],
        cwd=REPOSITORY_DIR,
        env=serve.find("gateway").environ() | {"HELEXA_LISTEN_HOST": "127.0.0.1"} | settings,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: httpx.get(f"{url}/health", timeout=30.0).status_code == 200, "up")
        yield url
    finally:
        process.terminate()
        process.wait(WAIT_TIMEOUT_S)
