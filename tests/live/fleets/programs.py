"""One process of a fleet as an object: start it, harm it, read what it logged."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tests.live.serving import LOG_TAIL_CHARACTERS, REPOSITORY_DIR, WAIT_TIMEOUT_S


class Program:
    """A command that may be started again after its end, with the same environment."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], log_dir: Path
    ) -> None:
        self.name = name
        self._command = command
        self._environment = environment
        self._log_path = log_dir / f"{name}.log"
        self.start()

    def start(self) -> None:
        with self._log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=REPOSITORY_DIR,
                env=dict(self._environment),
            )

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_TIMEOUT_S)

    def suspend(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        """Asks for an end in order, and does not wait for it."""
        self.process.terminate()

    def end(self) -> None:
        """However it stands, it is gone after this."""
        if self.is_running:
            self.process.terminate()
            try:
                self.process.wait(WAIT_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def log_tail(self) -> str:
        text = self._log_path.read_text(errors="replace")
        return f"--- {self.name}\n{text[-LOG_TAIL_CHARACTERS:]}"
