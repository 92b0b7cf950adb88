"""All child processes of one engine: one that ends by itself ends the model."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from inference.engine.children.child import Child
from inference.engine.faults.kinds import StepFault

OneChild = TypeVar("OneChild", bound=Child[Any])


class Children(Generic[OneChild]):
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_closed = False
        self._lost: StepFault | None = None
        self._on_lost: Callable[[StepFault], object] | None = None
        self.all: list[OneChild] = []
        """Filled by whatever starts them."""

    def __len__(self) -> int:
        return len(self.all)

    @property
    def lost(self) -> StepFault | None:
        """Which child is gone, if one is."""
        with self._lock:
            return self._lost

    def watch(self, on_lost: Callable[[StepFault], object]) -> None:
        """``on_lost`` is called once, on some thread, when a child ends by itself."""
        with self._lock:
            self._on_lost, lost = on_lost, self._lost
        if lost is not None:
            on_lost(lost)

    def lose(self, fault: StepFault) -> None:
        """The model cannot continue. Any thread; the first fault is kept."""
        with self._lock:
            if self._is_closed or self._lost is not None:
                return
            self._lost, on_lost = fault, self._on_lost
        if on_lost is not None:
            on_lost(fault)

    def close(self) -> None:
        """Ends all of them, whatever they do."""
        with self._lock:
            self._is_closed = True
        for child in self.all:
            child.kill()
