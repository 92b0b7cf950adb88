"""A model's requirements: kinds, number and size of devices, and bytes on each."""

from __future__ import annotations

from fleet.catalogue import CatalogueEntry
from fleet.catalogue.entry import DeviceKind
from fleet.placement.stages.devices import WANTED_CONTEXTS, whole_bytes

MIB = 1024**2

USUAL_CONTEXT_TOKENS = 32 * 1024
"""The assumed context of a model whose catalogue entry has no limit."""
UNKNOWN_SHARE = 0.25
UNKNOWN_BYTES = 2 * 1024**3
"""KV memory wanted while no load has measured the bytes per token: a part of the model's need, plus
this."""


class Needs:
    def __init__(self, entry: CatalogueEntry) -> None:
        self.entry = entry
        num_ranks = 1 if entry.device == "cpu" else entry.tensor_parallel
        self.num_devices = max(1, entry.min_devices, num_ranks)
        self.least_total_bytes = (entry.min_device_vram_mb or 0) * MIB

    @property
    def kinds(self) -> tuple[DeviceKind, ...]:
        """Best first. A CPU is one device: a model over several devices is on cards, except ranks
        of an entry with ``device = cpu``, which share it. A CPU has no VRAM, so it never meets
        ``min_device_vram_mb``."""
        match self.entry.device:
            case "cuda":
                return ("cuda",)
            case "cpu":
                return () if self.least_total_bytes else ("cpu",)
            case _:
                needs_card = self.num_devices > 1 or self.least_total_bytes > 0
                return ("cuda",) if needs_card else ("cuda", "cpu")

    def total_bytes(self, neuron: str, kind: DeviceKind) -> int | None:
        entry = self.entry
        is_measured = any(load.device_kind == kind for load in entry.measured_loads)
        if entry.costs is not None and not is_measured:
            return whole_bytes(entry.costs, kind) + (entry.kv_memory_bytes or 0)
        return entry.needed_memory_bytes(neuron, kind)

    def least_device_bytes(self, kind: DeviceKind) -> int | None:
        """The smallest bytes per device over all neurons; ``None`` while unknown."""
        neurons = {"", *(load.neuron for load in self.entry.measured_loads)}
        known = (self.device_bytes(neuron, kind) for neuron in neurons)
        return min((size for size in known if size is not None), default=None)

    def device_bytes(self, neuron: str, kind: DeviceKind) -> int | None:
        total = self.total_bytes(neuron, kind)
        return None if total is None else -(-total // self.num_devices)

    def wanted_bytes(self, device_bytes: int) -> int:
        """Free bytes wanted on a device for a model that needs ``device_bytes``: enough for
        ``WANTED_CONTEXTS`` contexts at once. The operator's KV size is part of the need."""
        if self.entry.kv_memory_bytes is not None:
            return device_bytes
        token_bytes = max((one.kv_token_bytes for one in self.entry.measured_loads), default=0)
        if not token_bytes:
            return int(device_bytes * (1 + UNKNOWN_SHARE)) + UNKNOWN_BYTES // self.num_devices
        tokens = WANTED_CONTEXTS * (self.entry.max_context_tokens or USUAL_CONTEXT_TOKENS)
        return device_bytes + tokens * token_bytes // self.num_devices
