"""Settings of neurons and of the engines that they start."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from inference.settings.setting import (
    COMMAND,
    FLAG,
    MAX_BYTES,
    MAX_COUNT,
    MAX_PORT,
    MAX_WAIT_S,
    MIB,
    PYTHON_NAME,
    Form,
    Setting,
    choice,
    decimal,
    text,
    whole,
)

ALL = "all"


class LoggedBodies(frozenset[str]):
    """Names of accounts, or ``ALL`` alone."""

    def include(self, account: str) -> bool:
        return self == frozenset({ALL}) or account in self

    def __str__(self) -> str:
        return ", ".join(sorted(self))


def _logged_bodies(word: str) -> LoggedBodies:
    names = LoggedBodies(filter(None, (name.strip() for name in word.split(","))))
    if not names:
        raise ValueError
    return names


DEVICE_NAME = re.compile(r"cpu|cuda:(0|[1-9][0-9]{0,3})")
SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([MGT]i?B)")
SCALES = {
    f"{prefix}{unit}": base**power
    for power, prefix in enumerate("MGT", start=2)
    for unit, base in (("B", 1000), ("iB", 1024))
}


class MemoryLimits(dict[str, int]):
    """A device without a limit has no entry."""

    def of(self, device: str) -> int | None:
        return self.get(device)

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(self)


def _memory_limits(word: str) -> MemoryLimits:
    limits = MemoryLimits()
    for part in word.split(","):
        device, equals, size = (piece.strip() for piece in part.partition("="))
        if not equals or not DEVICE_NAME.fullmatch(device):
            raise ValueError(f"{part.strip()!r} is not DEVICE=SIZE")
        if device in limits:
            raise ValueError(f"{device} has two limits")
        limits[device] = _num_bytes(size)
    return limits


def _num_bytes(size: str) -> int:
    found = SIZE.fullmatch(size)
    if found is None:
        raise ValueError(f"{size!r} is no size with its unit")
    num_bytes = int(Fraction(found[1]) * SCALES[found[2]])
    if not MIB <= num_bytes <= MAX_BYTES:
        raise ValueError(f"{size} is not between 1MiB and {MAX_BYTES} bytes")
    return num_bytes


ADDRESS = re.compile(
    r"(?P<host>\[[0-9a-fA-F:.%\w]+\]|[^\s:\[\]/]+)(?::(?P<first>\d{1,5})(?:-(?P<last>\d{1,5}))?)?"
)


@dataclass(frozen=True, slots=True)
class StageListen:
    host: str
    first_port: int | None = None
    last_port: int | None = None

    @property
    def ports(self) -> Sequence[int]:
        """0 is any free one."""
        if self.first_port is None:
            return [0]
        return range(self.first_port, (self.last_port or self.first_port) + 1)


def _stage_listen(word: str) -> StageListen:
    """
    10.0.0.5                                  any free port there
    10.0.0.5:7400, [2001:db8::5]:7400
    10.0.0.5:7400-7499, box.lan:7400-7499     one of these ports
    """
    found = ADDRESS.fullmatch(word.strip())
    if found is None:
        raise ValueError
    host = found["host"].strip("[]")
    if _is_every_address(host):
        raise ValueError(f"{host} is no address that another host can connect to")
    if found["first"] is None:
        return StageListen(host)
    first = int(found["first"])
    last = int(found["last"] or first)
    if not 1 <= first <= last <= MAX_PORT:
        raise ValueError(f"ports are from 1 to {MAX_PORT}, the lower one first")
    return StageListen(host, first, last)


def _is_every_address(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


ACCOUNTS = Form("all, or names of accounts with commas between them", _logged_bodies)
DEVICE_MEMORY = Form(
    "a list of devices with sizes like cpu=6GiB,cuda:0=20GiB (cpu or cuda:NUMBER, and from "
    "1MiB, in MiB, GiB, TiB or MB, GB, TB)",
    _memory_limits,
)
STAGE_ADDRESS = Form(
    "HOST, HOST:PORT or HOST:FIRST-LAST, with an address that other hosts reach", _stage_listen
)

NEURON_DRAIN_S = Setting("HELEXA_NEURON_DRAIN_S", whole(0, 86_400, "seconds"), 300)
LOG_BODIES = Setting("HELEXA_LOG_BODIES", ACCOUNTS, LoggedBodies())
STEP_TIMEOUT_S = Setting("HELEXA_STEP_TIMEOUT_S", decimal(0, MAX_WAIT_S, "seconds"), 120.0)
LOAD_STALL_S = Setting("HELEXA_LOAD_STALL_S", whole(0, 86_400, "seconds"), 900)
ENGINE_THREADS: Setting[int | None] = Setting("HELEXA_ENGINE_THREADS", whole(1, 1024, "threads"))
CPU_KV_SHARE: Setting[float | None] = Setting(
    "HELEXA_CPU_KV_SHARE", decimal(0.001, 0.9, "parts of 1")
)
VISION_MAX_PIXELS: Setting[int | None] = Setting(
    "HELEXA_VISION_MAX_PIXELS", whole(0, MAX_COUNT, "pixels")
)
VISION_MIN_PIXELS: Setting[int | None] = Setting(
    "HELEXA_VISION_MIN_PIXELS", whole(1, MAX_COUNT, "pixels")
)
ENGINE_CHECKS = Setting("HELEXA_ENGINE_CHECKS", FLAG, False)
ENGINE_COMMAND = Setting("HELEXA_ENGINE_COMMAND", COMMAND, ())
DEVICE_SOURCE: Setting[str | None] = Setting("HELEXA_DEVICE_SOURCE", PYTHON_NAME)
DEVICE = Setting("HELEXA_DEVICE", choice("auto", "cpu"), "auto")
MEMORY_LIMIT = Setting("HELEXA_MEMORY_LIMIT", DEVICE_MEMORY, MemoryLimits())
STAGE_LISTEN: Setting[StageListen | None] = Setting("HELEXA_STAGE_LISTEN", STAGE_ADDRESS)
HF_CACHE: Setting[str | None] = Setting("HELEXA_HF_CACHE", text("a path"))
HF_HOME: Setting[str | None] = Setting("HF_HOME", text("a path"))
HF_HUB_CACHE: Setting[str | None] = Setting("HF_HUB_CACHE", text("a path"))
HF_TOKEN: Setting[str | None] = Setting("HF_TOKEN", text(), is_secret=True)
HF_ENDPOINT: Setting[str | None] = Setting("HF_ENDPOINT", text("a URL"))
HF_HUB_OFFLINE: Setting[str | None] = Setting("HF_HUB_OFFLINE", text())
CC: Setting[str | None] = Setting("CC", text("a compiler"))
CXX: Setting[str | None] = Setting("CXX", text("a compiler"))
