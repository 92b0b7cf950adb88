"""A helexa server of the bench's own: a whole ``manage.py serve`` on a free loopback port."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

from rich.console import Console

from benchmarks.ports import free_port
from helexa_site.program import REPOSITORY_DIR

READY_PREFIX = "ready: "
STOP_TIMEOUT_S = 20
DEFAULT_MODEL = "smollm2-135m-instruct"


class ServerDidNotStartError(Exception):
    """``serve`` exited before it was ready; its own output has the reason."""


class BenchServer:
    """Serves the default model from the repository's data directory's ``bench`` folder."""

    model = DEFAULT_MODEL

    def __init__(self, data_dir: Path, console: Console) -> None:
        command = [sys.executable, str(REPOSITORY_DIR / "manage.py"), "serve"]
        command += ["--port", str(free_port()), "--data-dir", str(data_dir)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.url = self._wait_until_ready(console)

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(timeout=STOP_TIMEOUT_S)

    def _wait_until_ready(self, console: Console) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            console.print(f"serve: {line.rstrip()}", markup=False)
            if line.startswith(READY_PREFIX):
                # Its further output must be read, or a full pipe would block it.
                threading.Thread(target=self._process.stdout.read, daemon=True).start()
                return line.removeprefix(READY_PREFIX).strip()
        raise ServerDidNotStartError(f"serve ended with exit code {self._process.wait()}")
