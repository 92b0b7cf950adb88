"""Simulated cards, for tests of whole fleets: HELEXA_TEST_DEVICES names a JSON file of their sizes.

    [24000000000, 24000000000]
    <file>.taken/<device>/<pid>     how many bytes that process holds of it, as text

Engines that know of it (scripted ones) write down what they take: weights and KV on the one device
that their spec names, no more KV than the neuron promised them. A process that has ended holds
nothing, as with a driver. Free memory is the size less the bytes of live processes, so a neuron
measures it as on a card, and promises can be checked against sizes. No CUDA memory is allocated:
real engines cannot use such devices. A neuron asks ``simulated_devices`` for its host's devices
where HELEXA_DEVICE_SOURCE names it.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from inference.neuron.discovery import Discovery
from inference.protocol.heartbeat import DeviceInfo, HostInfo
from inference.protocol.load import LoadSpec
from inference.settings.neuron import DEVICE_SOURCE
from tests.live.scripted.script import Script

VARIABLE = "HELEXA_TEST_DEVICES"
REPOSITORY_DIR = Path(__file__).resolve().parents[3]
OVERCOMMITTED = "overcommitted"


@dataclass(frozen=True, slots=True)
class SimulatedDevices:
    """``inference.neuron.device_sampler.Devices`` over a file."""

    path: Path

    def host(self) -> HostInfo:
        return Discovery().host()

    def devices(self) -> list[DeviceInfo]:
        return [
            DeviceInfo(
                index=index,
                kind="cuda",
                name="simulated",
                total_memory_bytes=size_bytes,
                free_memory_bytes=max(0, size_bytes - sum(self.taken_bytes(name).values())),
            )
            for index, (name, size_bytes) in enumerate(self.sizes().items())
        ]

    def measure(self) -> list[DeviceInfo]:
        return self.devices()

    def held_bytes(self, pid: int) -> int:
        return self.taken_bytes("cpu").get(pid, 0)

    def sizes(self) -> dict[str, int]:
        sizes = json.loads(self.path.read_bytes())
        return {f"cuda:{index}": size for index, size in enumerate(sizes)}

    def take(self, device: str, num_bytes: int) -> None:
        directory = self._directory(device)
        directory.mkdir(parents=True, exist_ok=True)
        partial = directory / f".{os.getpid()}"
        partial.write_text(str(num_bytes))
        partial.replace(directory / str(os.getpid()))
        # Each writes before it reads, so that the last one sees the bytes of all.
        over_bytes = sum(self.taken_bytes(device).values()) - self.sizes().get(device, num_bytes)
        if over_bytes > 0:
            (directory / OVERCOMMITTED).write_text(f"{device}: {over_bytes} bytes too many")

    def overcommitted(self) -> list[str]:
        """The devices of which more was ever taken than they have."""
        found = self.path.parent.glob(f"{self.path.name}.taken/*/{OVERCOMMITTED}")
        return [one.read_text() for one in found]

    def taken_bytes(self, device: str) -> dict[int, int]:
        """Process id -> what it holds."""
        taken = {}
        for path in self._directory(device).glob("[0-9]*"):
            if not _is_alive(int(path.name)):
                path.unlink(missing_ok=True)
                continue
            with contextlib.suppress(FileNotFoundError):
                taken[int(path.name)] = int(path.read_text())
        return taken

    def _directory(self, device: str) -> Path:
        return self.path.with_name(f"{self.path.name}.taken") / device


def simulated_devices() -> SimulatedDevices:
    """The devices of the neuron that runs in this process. Raises ``ValueError``."""
    if VARIABLE not in os.environ:
        raise ValueError(f"{VARIABLE} names no file")
    return SimulatedDevices(Path(os.environ[VARIABLE]))


def device_environment(path: Path) -> dict[str, str]:
    """Variables of a neuron whose devices ``path`` describes, and of its scripted engines."""
    return {
        DEVICE_SOURCE.name: f"{__name__}:{simulated_devices.__name__}",
        VARIABLE: str(path),
        "PYTHONPATH": str(REPOSITORY_DIR),
    }


def _is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


class NoRoomError(Exception):
    """The weights, or the KV that was asked for by number, are more than is free."""

    def __init__(self, message: str, needed_bytes: int) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes


@dataclass(frozen=True, slots=True)
class Taken:
    device: str = "cpu"
    weight_bytes: int = 0
    kv_bytes: int = 0


def take_memory(spec: LoadSpec, script: Script) -> Taken:
    device = spec.devices[0] if spec.devices else "cpu"
    if VARIABLE not in os.environ:
        return Taken(device=device)
    simulated = simulated_devices()
    taken_bytes = sum(simulated.taken_bytes(device).values())
    free_bytes = max(0, simulated.sizes()[device] - taken_bytes - spec.promised_bytes)
    if spec.memory_limit_bytes is not None:
        free_bytes = min(free_bytes, spec.memory_limit_bytes)
    needed_bytes = script.weight_bytes + (spec.kv_memory_bytes or 0)
    if needed_bytes > free_bytes:
        message = f"{needed_bytes} bytes are needed on {device}, {free_bytes} are free"
        raise NoRoomError(message, needed_bytes)
    kv_bytes = spec.kv_memory_bytes or min(script.kv_bytes, free_bytes - script.weight_bytes)
    simulated.take(device, script.weight_bytes + kv_bytes)
    return Taken(device, script.weight_bytes, kv_bytes)
