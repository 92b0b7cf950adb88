"""Who leaves a device for a model that lacks room there, and what is lost with them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fleet.placement.devices.grounds import Resident

UNTOUCHED = -(2**31)
"""Below every priority: nobody has to leave."""


def victims_of(
    lacking_bytes: int, residents: Sequence[Resident], may_go: Callable[[Resident], bool]
) -> tuple[Resident, ...] | None:
    """The least valuable that make room, and none that makes no difference; ``None``: too few."""
    chosen: list[Resident] = []
    freed = 0
    for resident in residents:
        if freed >= lacking_bytes:
            break
        if resident.freed_bytes > 0 and may_go(resident):
            chosen.append(resident)
            freed += resident.freed_bytes
    if freed < lacking_bytes:
        return None
    for resident in reversed(chosen[:-1]):
        if freed - resident.freed_bytes >= lacking_bytes:
            chosen.remove(resident)
            freed -= resident.freed_bytes
    return tuple(chosen)


def loss_of(victims: Sequence[Resident]) -> tuple[int, float]:
    """The most valuable of them counts first, then how much is lost in all."""
    return (
        max((victim.priority for victim in victims), default=UNTOUCHED),
        sum(victim.loss for victim in victims),
    )
