"""Processes of a measurement: started with a log each, ended together, and killed when we exit."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from helexa_site.bootstrap.guardian import Guardian
from helexa_site.program import REPOSITORY_DIR

HOST = "127.0.0.1"
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 15.0
LOG_TAIL_CHARACTERS = 2000


class ProcessFailedError(Exception):
    """A process of the measurement exited or does not answer; its log's end is in the message."""


class RunningProcess:
    """``port``: its listening port, 0 for none."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path, port: int) -> None:
        self.name = name
        self.port = port
        self.pid = process.pid
        self._process = process
        self._log = log

    def wait_until_listening(self) -> None:
        """Raises ``ProcessFailedError``."""
        give_up_s = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                socket.create_connection((HOST, self.port), timeout=1).close()
                return
            except OSError:
                self.check()
                if time.monotonic() > give_up_s:
                    raise self._failed("does not listen") from None
                time.sleep(0.05)

    def check(self) -> None:
        """Raises ``ProcessFailedError`` when it has exited."""
        if (code := self._process.poll()) is not None:
            raise self._failed(f"ended with exit code {code}")

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def _failed(self, what: str) -> ProcessFailedError:
        return ProcessFailedError(f"{self.name} {what}:\n{self.log()[-LOG_TAIL_CHARACTERS:]}")


class Processes:
    """Ends its processes, the last one first. ``folder`` gets a log of each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[RunningProcess] = []
        self._guardian = Guardian()

    def start(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        port: int = 0,
        folder: Path = REPOSITORY_DIR,
    ) -> RunningProcess:
        """``port``: its listening port, ``folder``: its working directory."""
        log = self.folder / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._guardian.watch(process.pid)
        running = RunningProcess(name, process, log, port)
        self._running.append(running)
        return running

    def start_server(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        port: int,
        folder: Path = REPOSITORY_DIR,
    ) -> RunningProcess:
        """Returns it listening. Raises ``ProcessFailedError``."""
        running = self.start(name, command, env, port=port, folder=folder)
        running.wait_until_listening()
        return running

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for running in reversed(self._running):
            running.stop()
            self._guardian.release(running.pid)
        self._guardian.close()
