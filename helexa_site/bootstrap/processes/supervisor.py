"""The children of one serve, as a whole: those that others need are stopped last."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from helexa_site.bootstrap.processes.child import Child, ChildSpec
from helexa_site.bootstrap.processes.guardian import Guardian
from helexa_site.bootstrap.processes.log_file import LogFile


class StoppingError(Exception):
    """Raised for a child that would start while all are being stopped."""


class Supervisor:
    """A ``with`` block whose end stops every child; the guardian does so when this process is
    killed. Any thread may start children, also while another stops them."""

    def __init__(self, *, logs_dir: Path, guardian: Guardian) -> None:
        self._logs_dir = logs_dir
        self._guardian = guardian
        self._lock = threading.Lock()
        """Held while a child is added, so that none comes after the stop."""
        self._is_stopping = False
        self._children: list[Child] = []
        self._on_stopped: list[Callable[[], None]] = []

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    def ensure_running(self) -> None:
        """Raises ``StoppingError``."""
        if self._is_stopping:
            raise StoppingError

    def start(self, spec: ChildSpec) -> Child:
        """Raises ``StoppingError``."""
        with self._lock:
            self.ensure_running()
            log = LogFile(self._logs_dir / f"{spec.name}.log")
            child = Child(spec, log=log, guardian=self._guardian)
            child.start()
            self._children.append(child)
            return child

    def stop(self) -> None:
        """One tier after the other, each at once. Takes at most the sum of the tiers' graces."""
        with self._lock:
            self._is_stopping = True
        while self._children:
            highest = max(child.spec.tier for child in self._children)
            tier = [child for child in self._children if child.spec.tier == highest]
            for child in tier:
                child.ask_to_stop()
            for child in tier:
                child.stop()
                self._children.remove(child)
        while self._on_stopped:
            self._on_stopped.pop()()

    def kill(self) -> None:
        """Ends every child at once; ``stop`` waits for the rest."""
        for child in list(self._children):
            child.kill()

    def on_stopped(self, clean_up: Callable[[], None]) -> None:
        """Called when every child is gone; at once where they are being stopped already."""
        with self._lock:
            if not self._is_stopping:
                self._on_stopped.append(clean_up)
                return
        clean_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
