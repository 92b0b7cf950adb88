"""What should be loaded, derived from the catalogue: so that it has one home."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.catalogue import CatalogueEntry
from fleet.catalogue.settings import IdleAction


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    model: str
    neurons: tuple[str, ...]
    """Where it may run; empty: anywhere."""
    min_replicas: int
    max_replicas: int
    priority: int
    idle_ttl_s: int | None
    """Replicas beyond the least go after so long without a request; ``None``: they stay until
    their room is needed."""
    idle_action: IdleAction = "unload"
    """How they go."""


def assignment_of(entry: CatalogueEntry) -> Assignment:
    least = entry.effective_min_replicas
    return Assignment(
        model=entry.name,
        neurons=entry.pinned_on,
        min_replicas=least,
        max_replicas=max(1, least, entry.max_replicas),
        priority=entry.effective_priority,
        idle_ttl_s=entry.idle_ttl_s,
        idle_action=entry.idle_action,
    )
