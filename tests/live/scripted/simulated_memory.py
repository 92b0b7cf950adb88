"""What a scripted engine takes of a simulated device, and whether that is more than there is.

As a real engine: weights and KV on the one device that its spec names, no more KV than the neuron
promised it. Memory used is written where ``SimulatedDevices`` reads it, so it is not free any more.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from inference.protocol.heartbeat import device_name
from inference.protocol.load import LoadSpec
from tests.live.scripted.script import Script
from tests.live.scripted.simulated_devices import SimulatedDevices


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
    """Raises ``NoRoomError``."""
    device = spec.devices[0] if spec.devices else "cpu"
    simulated = SimulatedDevices.from_environment(os.environ)
    if simulated is None:
        return Taken(device=device)
    free_bytes = max(0, _free_bytes(simulated, device) - spec.promised_bytes)
    if spec.memory_limit_bytes is not None:
        free_bytes = min(free_bytes, spec.memory_limit_bytes)
    needed_bytes = script.weight_bytes + (spec.kv_memory_bytes or 0)
    if needed_bytes > free_bytes:
        message = f"{needed_bytes} bytes are needed on {device}, {free_bytes} are free"
        raise NoRoomError(message, needed_bytes)
    kv_bytes = spec.kv_memory_bytes or min(script.kv_bytes, free_bytes - script.weight_bytes)
    simulated.take(device, script.weight_bytes + kv_bytes)
    return Taken(device, script.weight_bytes, kv_bytes)


def overcommitted(simulated: SimulatedDevices) -> dict[str, int]:
    """Device -> by how many bytes its living processes hold more than it has. Empty where all is
    well: look often while loads come and go."""
    excess = {}
    for device in simulated.devices():
        name = device_name(device)
        taken_bytes = sum(simulated.taken_bytes(name).values())
        if taken_bytes > device.total_memory_bytes:
            excess[name] = taken_bytes - device.total_memory_bytes
    return excess


def _free_bytes(simulated: SimulatedDevices, device: str) -> int:
    free = {device_name(one): one.free_memory_bytes for one in simulated.devices()}
    return free[device]
