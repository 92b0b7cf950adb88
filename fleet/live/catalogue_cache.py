"""Caches the whole catalogue for a moment: a gateway reads it for every request.

A process has only one: a change is seen everywhere within ``CACHE_S``, which counts from before the
read. Knows no ORM: the read is an argument.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from fleet.catalogue import CatalogueEntry

CACHE_S = 1.0


@dataclass(frozen=True, slots=True)
class OfferedModels:
    """The enabled models, and adapters whose base is enabled. The same object until the catalogue
    is read again."""

    entries: tuple[CatalogueEntry, ...]
    by_name: dict[str, CatalogueEntry]
    """Loadable models: without aliases and adapters."""
    by_any_name: dict[str, CatalogueEntry]
    """An adapter also as ``base:adapter``."""

    @classmethod
    def of(cls, entries: tuple[CatalogueEntry, ...]) -> OfferedModels:
        by_name = {entry.name: entry for entry in entries if entry.base is None}
        entries = tuple(e for e in entries if e.base is None or e.base in by_name)
        by_base = {f"{entry.base}:{entry.name}": entry for entry in entries if entry.base}
        by_alias = {alias: entry for entry in entries for alias in entry.aliases}
        own_names = {entry.name: entry for entry in entries}
        return cls(entries, by_name, by_base | by_alias | own_names)


class CatalogueCache:
    """Thread-safe. Two threads that find it expired may both read."""

    def __init__(
        self,
        read: Callable[[], tuple[CatalogueEntry, ...]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._clock = clock
        self._last: tuple[float, OfferedModels] | None = None

    def kept(self) -> OfferedModels | None:
        """``None``: empty or expired. Reads nothing."""
        last = self._last
        if last is not None and self._clock() - last[0] < CACHE_S:
            return last[1]
        return None

    def current(self) -> OfferedModels:
        kept = self.kept()
        if kept is not None:
            return kept
        asked_at_s = self._clock()
        offered = OfferedModels.of(self._read())
        self._last = (asked_at_s, offered)
        return offered

    def clear(self) -> None:
        self._last = None
