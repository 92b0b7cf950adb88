"""Which of the models that make room for a load fall asleep rather than leave. Pure.

One that sleeps comes back several times faster, and holds less of its device, but not nothing, and
what its weights take of the host's memory. So models sleep as long as the rest still makes room and
the host's memory lasts; the others are unloaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inference.protocol.load_report import AsleepBytes

HOST_SHARE_KEPT = 0.1
"""The share of the host's memory that weights of models that sleep leave to everybody else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    model: str
    device: str = ""
    held_bytes: int
    """What it holds of the device, all of which comes back if it is unloaded."""
    asleep: AsleepBytes | None
    """``None``: it cannot sleep, or does already."""

    @property
    def withheld_bytes(self) -> int:
        """What of the device does not come back if it sleeps."""
        return 0 if self.asleep is None else min(self.held_bytes, self.asleep.on(self.device))


def choose_sleepers(
    leaving: Sequence[Leaving], *, lacking_bytes: int | None, host_bytes: int
) -> frozenset[str]:
    """The names of the replicas that sleep instead of unloading, the cheapest to keep first.
    ``lacking_bytes`` must be freed; ``None``: unknown, so none sleeps. ``host_bytes``: host memory
    that may be used."""
    if lacking_bytes is None:
        return frozenset()
    spare_bytes = sum(one.held_bytes for one in leaving) - lacking_bytes
    sleepers = set()
    for one in sorted(leaving, key=lambda one: (one.withheld_bytes, one.model)):
        if one.asleep is None:
            continue
        if one.withheld_bytes <= spare_bytes and one.asleep.host_bytes <= host_bytes:
            spare_bytes -= one.withheld_bytes
            host_bytes -= one.asleep.host_bytes
            sleepers.add(one.model)
    return frozenset(sleepers)
