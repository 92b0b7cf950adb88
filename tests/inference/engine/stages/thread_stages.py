"""Stages behind the first as threads of the test's process: they start at once, and speak over the
sockets that processes have."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Sequence

from inference.channel import Channel
from inference.engine.children import ParentLink
from inference.engine.errors import EngineExit
from inference.engine.stages.messages import decode_to_stage
from inference.engine.stages.stage_process import serve


class StageThread:
    """Stands for ``subprocess.Popen``, of which a child uses this much."""

    pid = os.getpid()

    def __init__(self, module: str, fds: Sequence[tuple[str, int]]) -> None:
        """Takes what ``inference.engine.children.start_process`` takes."""
        sockets = {name: socket.socket(fileno=os.dup(fd)) for name, fd in fds}
        self._sockets = list(sockets.values())
        engine = ParentLink(Channel(sockets.pop("--fd")), decode_to_stage, lambda: None)
        self._thread = threading.Thread(target=self._run, args=(engine, sockets))
        self._thread.daemon = True
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> int:
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise subprocess.TimeoutExpired("a stage", timeout_s or 0.0)
        return EngineExit.FAILED

    def kill(self) -> None:
        for one in self._sockets:
            shut_down(one)

    def _run(self, *arguments: object) -> None:
        try:
            serve(*arguments)  # type: ignore[arg-type]
        finally:
            self.kill()


def shut_down(one: socket.socket) -> None:
    """Closes both directions, while another thread may read."""
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
