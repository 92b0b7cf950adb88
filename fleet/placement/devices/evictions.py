"""Chooses the replicas to evict for a model that lacks memory on a device, and rates the loss.
Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fleet.placement.devices.capacity import EvictionCandidate

UNTOUCHED = -(2**31)
"""Below every priority: no eviction."""


def evictions_for(
    lacking_bytes: int,
    evictables: Sequence[EvictionCandidate],
    may_go: Callable[[EvictionCandidate], bool],
) -> tuple[EvictionCandidate, ...] | None:
    """The least valuable replicas that free enough, without unneeded ones; ``None``: all of them
    are not enough."""
    chosen: list[EvictionCandidate] = []
    freed = 0
    for evictable in evictables:
        if freed >= lacking_bytes:
            break
        if evictable.freed_bytes > 0 and may_go(evictable):
            chosen.append(evictable)
            freed += evictable.freed_bytes
    if freed < lacking_bytes:
        return None
    for evictable in reversed(chosen[:-1]):
        if freed - evictable.freed_bytes >= lacking_bytes:
            chosen.remove(evictable)
            freed -= evictable.freed_bytes
    return tuple(chosen)


def loss_of(evicted: Sequence[EvictionCandidate]) -> tuple[int, float]:
    """Sort key of an eviction: the highest priority among them, then the total loss."""
    return (
        max((one.priority for one in evicted), default=UNTOUCHED),
        sum(one.loss for one in evicted),
    )
