"""Devices for tests of where loads go and what they may take."""

from __future__ import annotations

from inference.protocol.heartbeat import DeviceInfo, HostInfo

GB = 10**9


def device(kind: str, index: int, free_gb: float, total_gb: float) -> DeviceInfo:
    return DeviceInfo(
        index=index,
        kind=kind,
        name=f"{kind} {index}",
        total_memory_bytes=int(total_gb * GB),
        free_memory_bytes=int(free_gb * GB),
    )


def card(index: int, free_gb: float, total_gb: float = 24) -> DeviceInfo:
    return device("cuda", index, free_gb, total_gb)


def host(free_gb: float, total_gb: float = 128) -> DeviceInfo:
    return device("cpu", 0, free_gb, total_gb)


class Machine:
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
