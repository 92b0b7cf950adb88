"""The most memory that processes hold while something happens to them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

MAX_GROWTH_BYTES = 50_000_000
"""What an attack may make the gateway, the control or Redis grow by."""
SAMPLE_INTERVAL_S = 0.02


class MemoryGrowth:
    """``resident`` gives the resident bytes of each process. Growth counts from now on."""

    def __init__(self, resident: Mapping[str, Callable[[], int]]) -> None:
        self._resident = resident
        self._before = self._now()

    def now(self) -> dict[str, int]:
        return {name: held - self._before[name] for name, held in self._now().items()}

    @contextmanager
    def peaks(self) -> Iterator[dict[str, int]]:
        """The most that each has grown by meanwhile, complete when the ``with`` has ended."""
        most, ended = self.now(), threading.Event()

        def sample() -> None:
            while not ended.wait(SAMPLE_INTERVAL_S):
                for name, grown in self.now().items():
                    most[name] = max(most[name], grown)

        sampler = threading.Thread(target=sample)
        sampler.start()
        try:
            yield most
        finally:
            ended.set()
            sampler.join()

    def _now(self) -> dict[str, int]:
        return {name: read() for name, read in self._resident.items()}
