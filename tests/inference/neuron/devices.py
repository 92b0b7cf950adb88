"""Devices for tests of where loads go and what they may take."""

from __future__ import annotations

from inference.protocol.heartbeat import DeviceInfo, HostInfo

GB = 10**9


def card(index: int, free_gb: float, total_gb: float = 24) -> DeviceInfo:
    return DeviceInfo(
        index=index,
        kind="cuda",
        name=f"card {index}",
        total_memory_bytes=int(total_gb * GB),
        free_memory_bytes=int(free_gb * GB),
    )


def host(free_gb: float, total_gb: float = 128) -> DeviceInfo:
    return DeviceInfo(
        index=0,
        kind="cpu",
        name="processors",
        total_memory_bytes=int(total_gb * GB),
        free_memory_bytes=int(free_gb * GB),
    )


class Machine:
    """Has the devices that a test names."""

    def __init__(self, *devices: DeviceInfo) -> None:
        self.there = list(devices)
        self.held = 0

    def devices(self) -> list[DeviceInfo]:
        return self.there

    def measure(self) -> list[DeviceInfo]:
        return self.there

    def held_bytes(self, pid: int) -> int:
        return self.held

    def host(self) -> HostInfo:
        return HostInfo(
            hostname="h", os="Linux", num_cores=1, total_memory_bytes=1, free_memory_bytes=1
        )
