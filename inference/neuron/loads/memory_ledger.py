"""The neuron's ledger of device memory: how much each owner was promised. Pure.

    accept ─▶ begin ─▶ settle ─▶ (lost ─▶ begin ─▶ settle)* ─▶ release
    waits     loads    loaded     engine died, starts again

Not all memory that is measured as free is available: a waiting load holds nothing yet, a running
load holds a part, and an engine on a CPU gets pages as its blocks come into use. Each holding
limits how much its owner may allocate of its device. The part that is not allocated yet is
*outstanding*, and counts as used. Loads go in the order of acceptance: a later one's promise is
kept only as far as earlier loads leave room for it. Where the operator limits a device, all owners
together hold no more of it than that.

Knows no threads: its owner locks. Measurements are arguments.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from inference.protocol.heartbeat import DeviceInfo, device_name
from inference.settings.neuron import MemoryLimits

HOST = "cpu"
NO_LIMITS = MemoryLimits()
Owner = Hashable
"""A replica, compared by identity, or the part of one that is elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    owner: Owner
    devices: tuple[str, ...]
    num_bytes: int
    """Most bytes that it allocates on each of its devices. 0 while unknown."""
    held_bytes: int = 0
    is_begun: bool = False

    @property
    def outstanding_bytes(self) -> int:
        return max(0, self.num_bytes - self.held_bytes)


class MemoryLedger:
    def __init__(self, limits: MemoryLimits = NO_LIMITS) -> None:
        self._limits = limits
        self._holdings: dict[Owner, Holding] = {}
        self._of_host_memory = frozenset({HOST})

    def share_host_memory(self, cards: Iterable[str]) -> None:
        """``cards``: all whose memory is the host's. A promise on one of them, or on the CPUs, is
        one on all."""
        self._of_host_memory = frozenset({HOST, *cards})

    def accept(self, owner: Owner, devices: Sequence[str], num_bytes: int) -> None:
        """``owner`` waits for its turn, after all that are here."""
        assert owner not in self._holdings
        self._holdings[owner] = Holding(owner=owner, devices=tuple(devices), num_bytes=num_bytes)

    def begin(self, owner: Owner, devices: Sequence[str], num_bytes: int) -> None:
        self._holdings[owner] = replace(
            self._holdings[owner],
            devices=tuple(devices),
            num_bytes=num_bytes,
            held_bytes=0,
            is_begun=True,
        )

    def settle(self, owner: Owner, num_bytes: int) -> None:
        """Sets the claim to what it takes, now that this is known; it will never take more."""
        self._change(owner, num_bytes=num_bytes)

    def hold(self, owner: Owner, held_bytes: int) -> None:
        self._change(owner, held_bytes=max(0, held_bytes))

    def release(self, owner: Owner) -> None:
        """Forgets an owner that is gone or was refused. One that has nothing is no mistake."""
        self._holdings.pop(owner, None)

    def holding(self, owner: Owner) -> Holding | None:
        return self._holdings.get(owner)

    def holdings(self) -> list[Holding]:
        return list(self._holdings.values())

    def outstanding_bytes(self, device: str) -> int:
        return sum(holding.outstanding_bytes for holding in self._on(device))

    def limit_bytes(
        self,
        owner: Owner,
        device: str,
        free_bytes: int,
        needed_bytes: int | None,
        gone: Collection[Owner] = (),
        asleep: Sequence[tuple[Owner, int]] = (),
    ) -> int:
        """Bytes that ``owner`` may allocate on ``device``, given its measured free bytes: all but
        promises to others. Promises to later owners count only as far as they leave it what it
        needs (``None``: unknown, so it goes first). Assumes that ``gone`` have released their
        memory, and ``asleep`` all but so many bytes."""
        limits = [self._left_bytes(owner, self._on(device), free_bytes, needed_bytes, gone, asleep)]
        if (unused_bytes := self._unused_bytes(device)) is not None:
            named = self._named(device)
            limits.append(self._left_bytes(owner, named, unused_bytes, needed_bytes, gone, asleep))
        return min(limits)

    def within_limits(self, devices: Iterable[DeviceInfo]) -> list[DeviceInfo]:
        return [self._within_limit(device) for device in devices]

    def without_promised(self, devices: Iterable[DeviceInfo]) -> list[DeviceInfo]:
        """``devices`` as measured, within the operator's limits, and with outstanding memory
        counted as used."""
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

    def check_integrity(self) -> None:
        for owner, holding in self._holdings.items():
            assert holding.owner is owner
            assert holding.num_bytes >= 0 and holding.held_bytes >= 0
            assert len(set(holding.devices)) == len(holding.devices)

    def _on(self, device: str) -> list[Holding]:
        """Holdings of the memory that the device uses."""
        sharing = self._of_host_memory if device in self._of_host_memory else {device}
        return [one for one in self._holdings.values() if not sharing.isdisjoint(one.devices)]

    def _named(self, device: str) -> list[Holding]:
        """Holdings of the device itself. A limit of the CPUs does not apply to a card that has the
        host's memory."""
        return [one for one in self._holdings.values() if device in one.devices]

    def _unused_bytes(self, device: str) -> int | None:
        """Bytes that the operator's limit leaves beside the held memory; negative where more is
        held than promised. ``None``: no limit."""
        limit_bytes = self._limits.of(device)
        if limit_bytes is None:
            return None
        return limit_bytes - sum(holding.held_bytes for holding in self._named(device))

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
        self,
        owner: Owner,
        holdings: Iterable[Holding],
        free_bytes: int,
        needed_bytes: int | None,
        gone: Collection[Owner],
        asleep: Sequence[tuple[Owner, int]],
    ) -> int:
        left_bytes, later_bytes, is_earlier = free_bytes, 0, True
        withheld = dict(asleep)
        for holding in holdings:
            if holding.owner is owner:
                is_earlier = False
            elif holding.owner in gone:
                left_bytes += holding.held_bytes
            elif holding.owner in withheld:
                left_bytes += max(0, holding.held_bytes - withheld[holding.owner])
            elif is_earlier or holding.is_begun:
                left_bytes -= holding.outstanding_bytes
            else:
                later_bytes += holding.outstanding_bytes
        if needed_bytes is None:
            return max(0, left_bytes)
        return max(0, left_bytes - min(later_bytes, max(0, left_bytes - needed_bytes)))

    def _change(self, owner: Owner, **changes: int) -> None:
        if (holding := self._holdings.get(owner)) is not None:
            self._holdings[owner] = replace(holding, **changes)  # type: ignore[arg-type]
