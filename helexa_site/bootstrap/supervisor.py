"""The children of one serve, as a whole: those that others need are stopped last."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from helexa_site.bootstrap.child import Child, ChildSpec
from helexa_site.bootstrap.guardian import Guardian
from helexa_site.bootstrap.log_file import LogFile


class Supervisor:
    """A ``with`` block whose end stops every child; the guardian does so when this process is
    killed. Used by one thread."""

    def __init__(self, *, logs_dir: Path, guardian: Guardian) -> None:
        self._logs_dir = logs_dir
        self._guardian = guardian
        self._children: list[Child] = []
        self._on_stopped: list[Callable[[], None]] = []

    def start(self, spec: ChildSpec) -> Child:
        log = LogFile(self._logs_dir / f"{spec.name}.log")
        child = Child(spec, log=log, guardian=self._guardian)
        self._children.append(child)
        child.start()
        return child

    def stop(self) -> None:
        """One tier after the other, each at once. Takes at most the sum of the tiers' graces."""
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

    def on_stopped(self, clean_up: Callable[[], None]) -> None:
        """Called when every child is gone."""
        self._on_stopped.append(clean_up)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
