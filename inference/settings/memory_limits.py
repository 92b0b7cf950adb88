"""The setting of what a neuron may use of its devices' memory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from inference.settings.limits import MAX_BYTES, MIB

DEVICE_NAME = re.compile(r"cpu|cuda:(0|[1-9][0-9]{0,3})")
SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([MGT]i?B)")
SCALES = {
    f"{prefix}{unit}": base**power
    for power, prefix in enumerate("MGT", start=2)
    for unit, base in (("B", 1000), ("iB", 1024))
}
MIN_BYTES = MIB


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Most bytes of each device that a neuron's models may use together. A device without a limit
    has no entry."""

    by_device: tuple[tuple[str, int], ...] = ()

    def of(self, device: str) -> int | None:
        return dict(self.by_device).get(device)

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(device for device, _ in self.by_device)


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """``cpu=6GiB,cuda:0=20GiB``."""

    rule: str = (
        "a list of devices with sizes like cpu=6GiB,cuda:0=20GiB (cpu or cuda:NUMBER, and from "
        "1MiB, in MiB, GiB, TiB or MB, GB, TB)"
    )

    def parse(self, word: str) -> MemoryLimits:
        limits: dict[str, int] = {}
        for part in word.split(","):
            device, equals, size = (piece.strip() for piece in part.partition("="))
            if not equals or not DEVICE_NAME.fullmatch(device):
                raise ValueError(f"{part.strip()!r} is not DEVICE=SIZE")
            if device in limits:
                raise ValueError(f"{device} has two limits")
            limits[device] = _num_bytes(size)
        return MemoryLimits(tuple(limits.items()))


def _num_bytes(size: str) -> int:
    found = SIZE.fullmatch(size)
    if found is None:
        raise ValueError(f"{size!r} is no size with its unit")
    num_bytes = int(Decimal(found[1]) * SCALES[found[2]])
    if not MIN_BYTES <= num_bytes <= MAX_BYTES:
        raise ValueError(f"{size} is not between 1MiB and {MAX_BYTES} bytes")
    return num_bytes
