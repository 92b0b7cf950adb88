"""When an engine that died is started again, and when a load that failed may be tried again. Pure.

What a failure depended on has to have changed:

    does_not_fit, out_of_memory     more memory is free on as many devices
    disk_full                       more of the disk is free
    engine_crashed, device_fault …  chance, a few times; then as for memory
    download_failed, load_stalled   nothing that this host could see: time alone
    stage_unreachable               the same
    unknown_architecture …          its files alone, which ``failed_loads`` compares

Another spec and another instance of the neuron (its version, its engine, its devices) start without
the failure, so those are not compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from inference.backoff import Backoff
from inference.protocol.load_progress import LoadFailure

RESTART_BACKOFF = Backoff(first_s=0.5, max_s=30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    healthy_after_s: float = 60.0
    """An engine that served this long had recovered: failures before it no longer count."""
    max_quick_failures: int = 5
    """The number of quick failures in a row that are restarted; the next one fails the replica."""
    backoff: Backoff = RESTART_BACKOFF

    def delay_s(self, num_quick_failures: int) -> float | None:
        """Seconds to wait before the next start: none after the first failure, then doubling;
        ``None`` when it is time to give up."""
        if num_quick_failures > self.max_quick_failures:
            return None
        if num_quick_failures <= 1:
            return 0.0
        return self.backoff.wait_s(num_quick_failures - 1)


MAX_CHANCES = 3
"""Failures in a row that chance may explain."""
MORE_MEMORY_BYTES = 512 * 1024**2
MORE_DISK_BYTES = 64 * 1024**2
"""The least additional disk that counts. Less is what other programs take and free all the time."""


class Dependency(Enum):
    """What a failure may depend on beside the model's files and settings."""

    TIME = auto()
    CHANCE = auto()
    MEMORY = auto()
    DISK = auto()


_ENGINE = frozenset({Dependency.CHANCE, Dependency.MEMORY})
_DEPENDENCIES = {
    "does_not_fit": frozenset({Dependency.MEMORY}),
    "out_of_memory": frozenset({Dependency.MEMORY}),
    "disk_full": frozenset({Dependency.DISK}),
    "engine_crashed": _ENGINE,
    "engine_hung": _ENGINE,
    "engine_error": _ENGINE,
    "device_fault": _ENGINE,
}
_OF_OTHERS = frozenset({Dependency.TIME})


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Free memory and disk of a host at one moment."""

    device_free_bytes: Mapping[str, int] = field(default_factory=dict)
    """Device name (``cuda:1``) -> bytes; empty: not known."""
    disk_free_bytes: int | None = None


def dependencies(failure: LoadFailure) -> frozenset[Dependency]:
    """What the failure depended on; empty: its files and settings alone. A load that reported its
    need depends on nothing here: placement compares the need with free memory."""
    if failure.is_permanent:
        return frozenset()
    if failure.needed_bytes is not None:
        return _OF_OTHERS
    return _DEPENDENCIES.get(failure.code, _OF_OTHERS)


def waits_for_time(failure: LoadFailure, num_failures: int) -> bool:
    """Whether back-off is all that the next try needs. ``num_failures``: in a row, this one
    included."""
    found = dependencies(failure)
    return Dependency.TIME in found or (Dependency.CHANCE in found and num_failures <= MAX_CHANCES)


def has_improved(
    failure: LoadFailure, devices: Sequence[str], then: Conditions, now: Conditions
) -> bool:
    """``devices``: those that it was loaded onto. ``then``: when it began, or failed."""
    found = dependencies(failure)
    if Dependency.MEMORY in found and _has_more_memory(devices, then, now):
        return True
    return Dependency.DISK in found and _has_more_disk(then, now)


def _has_more_memory(devices: Sequence[str], then: Conditions, now: Conditions) -> bool:
    """Whether as many devices of that kind have more free than the fullest one had."""
    before = [then.device_free_bytes[name] for name in devices if name in then.device_free_bytes]
    if not before:
        return False
    kind = devices[0].partition(":")[0]
    free = sorted(
        (
            num_bytes
            for name, num_bytes in now.device_free_bytes.items()
            if name.partition(":")[0] == kind
        ),
        reverse=True,
    )
    return len(free) >= len(before) and free[len(before) - 1] >= min(before) + MORE_MEMORY_BYTES


def _has_more_disk(then: Conditions, now: Conditions) -> bool:
    if then.disk_free_bytes is None or now.disk_free_bytes is None:
        return False
    return now.disk_free_bytes >= then.disk_free_bytes + MORE_DISK_BYTES
