"""The neuron's ledger of device memory: how much of each device was promised to whom. Pure.

A claim limits how much its owner may allocate of a device. The part that is not allocated yet is
*outstanding*, and counts as used. Loads go in the order of acceptance: a later one's promise is
kept only as far as earlier loads leave room for it. The owner of the ledger locks it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from inference.protocol.heartbeat import DeviceInfo, device_name
from inference.settings.neuron import MemoryLimits

HOST = "cpu"
NO_LIMITS = MemoryLimits()


@dataclass(slots=True, eq=False, kw_only=True)
class Claim:
    device: str
    num_bytes: int = 0
    """0 while unknown."""
    held_bytes: int = 0
    is_begun: bool = False
    """Its load has had its turn: no other goes before it."""

    @property
    def outstanding_bytes(self) -> int:
        return max(0, self.num_bytes - self.held_bytes)


class MemoryLedger:
    def __init__(self, limits: MemoryLimits = NO_LIMITS) -> None:
        self._limits = limits
        self._claims: list[Claim] = []
        """In the order of acceptance."""
        self._of_host_memory = frozenset({HOST})

    def share_host_memory(self, cards: Iterable[str]) -> None:
        """``cards``: all whose memory is the host's. A promise on one of them, or on the CPUs, is
        one on all."""
        self._of_host_memory = frozenset({HOST, *cards})

    def claim(self, devices: Iterable[str], before: Sequence[Claim] = ()) -> dict[str, Claim]:
        """The claims take the place of ``before`` in the order, else the last."""
        at = self._claims.index(before[0]) if before else len(self._claims)
        self.release(before)
        claims = {name: Claim(device=name) for name in devices}
        self._claims[at:at] = claims.values()
        return claims

    def release(self, claims: Collection[Claim]) -> None:
        self._claims = [one for one in self._claims if one not in claims]

    def outstanding_bytes(self, device: str) -> int:
        return sum(claim.outstanding_bytes for claim in self._on(device))

    def limit_bytes(
        self,
        own: Claim | None,
        device: str,
        free_bytes: int,
        needed_bytes: int | None,
        gone: Collection[Claim] = (),
        asleep: Mapping[Claim, int] | None = None,
    ) -> int:
        """All of ``free_bytes`` but promises to others. Promises to later owners count only as far
        as they leave it ``needed_bytes`` (``None``: unknown, so it goes first). Assumes that
        ``gone`` have released their memory, and ``asleep`` all but so many bytes."""

        def left(claims: Iterable[Claim], free_bytes: int) -> int:
            return _left_bytes(own, claims, free_bytes, needed_bytes, gone, asleep or {})

        limit_bytes = left(self._on(device), free_bytes)
        if (unused_bytes := self._unused_bytes(device)) is not None:
            limit_bytes = min(limit_bytes, left(self._named(device), unused_bytes))
        return limit_bytes

    def within_limits(self, devices: Iterable[DeviceInfo]) -> list[DeviceInfo]:
        return [self._within_limit(device) for device in devices]

    def without_promised(self, devices: Iterable[DeviceInfo]) -> list[DeviceInfo]:
        """Counts outstanding memory as used."""
        reduced = []
        for device in devices:
            name = device_name(device)
            reserved_bytes = self.outstanding_bytes(name)
            free_bytes = device.free_memory_bytes - reserved_bytes
            if (unused_bytes := self._unused_bytes(name)) is not None:
                promised_bytes = sum(one.outstanding_bytes for one in self._named(name))
                free_bytes = min(free_bytes, unused_bytes - promised_bytes)
            reduced.append(
                msgspec.structs.replace(
                    self._within_limit(device),
                    free_memory_bytes=max(0, free_bytes),
                    reserved_bytes=reserved_bytes,
                )
            )
        return reduced

    def _on(self, device: str) -> list[Claim]:
        sharing = self._of_host_memory if device in self._of_host_memory else {device}
        return [one for one in self._claims if one.device in sharing]

    def _named(self, device: str) -> list[Claim]:
        """A limit of the CPUs does not apply to a card that has the host's memory."""
        return [one for one in self._claims if one.device == device]

    def _unused_bytes(self, device: str) -> int | None:
        """Negative where more is held than promised; ``None``: no limit."""
        limit_bytes = self._limits.of(device)
        if limit_bytes is None:
            return None
        return limit_bytes - sum(claim.held_bytes for claim in self._named(device))

    def _within_limit(self, device: DeviceInfo) -> DeviceInfo:
        name, total_bytes = device_name(device), device.total_memory_bytes
        limit_bytes, unused_bytes = self._limits.of(name), self._unused_bytes(name)
        if limit_bytes is None or unused_bytes is None:
            return device
        return msgspec.structs.replace(
            device,
            total_memory_bytes=min(limit_bytes, total_bytes),
            free_memory_bytes=max(0, min(unused_bytes, device.free_memory_bytes)),
            installed_memory_bytes=total_bytes if limit_bytes < total_bytes else None,
        )


def _left_bytes(
    own: Claim | None,
    claims: Iterable[Claim],
    free_bytes: int,
    needed_bytes: int | None,
    gone: Collection[Claim],
    asleep: Mapping[Claim, int],
) -> int:
    left_bytes, later_bytes, is_earlier = free_bytes, 0, True
    for claim in claims:
        if claim is own:
            is_earlier = False
        elif claim in gone:
            left_bytes += claim.held_bytes
        elif claim in asleep:
            left_bytes += max(0, claim.held_bytes - asleep[claim])
        elif is_earlier or claim.is_begun:
            left_bytes -= claim.outstanding_bytes
        else:
            later_bytes += claim.outstanding_bytes
    if needed_bytes is not None:
        left_bytes -= min(later_bytes, max(0, left_bytes - needed_bytes))
    return max(0, left_bytes)
