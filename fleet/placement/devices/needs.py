"""What a model asks of devices: which kinds, how many, how large, and how many bytes on each."""

from __future__ import annotations

from fleet.catalogue import CatalogueEntry
from fleet.live.measurements import DeviceKind
from fleet.placement.stages.layer_memory import WANTED_CONTEXTS, whole_bytes

MIB = 1024**2

USUAL_CONTEXT_TOKENS = 32 * 1024
"""The context that is wanted of a model whose catalogue entry bounds none."""
UNKNOWN_SHARE = 0.25
UNKNOWN_BYTES = 2 * 1024**3
"""KV memory wanted while no load has measured the bytes per token: a part of the model's need, plus
this."""


class Needs:
    """What one entry needs. Looks through its measured loads once."""

    __slots__ = (
        "_device_bytes",
        "_fallback_bytes",
        "_kv_token_bytes",
        "_largest",
        "_own",
        "_usual_bytes",
        "entry",
        "least_total_bytes",
        "num_devices",
    )

    def __init__(self, entry: CatalogueEntry) -> None:
        self.entry = entry
        num_ranks = 1 if entry.device == "cpu" else entry.tensor_parallel
        self.num_devices = max(1, entry.min_devices, num_ranks)
        self.least_total_bytes = (entry.min_device_vram_mb or 0) * MIB
        self._kv_token_bytes = max((one.kv_token_bytes for one in entry.measured_loads), default=0)
        self._own: dict[tuple[str, DeviceKind], int] = {}
        self._largest: dict[DeviceKind, tuple[int, str]] = {}
        for load in entry.measured_loads:
            self._own[load.neuron, load.device_kind] = load.needed_bytes(entry.kv_memory_bytes)
            size = (load.load_bytes, load.neuron)
            if size > self._largest.get(load.device_kind, (-1, "")):
                self._largest[load.device_kind] = size
        self._fallback_bytes: dict[DeviceKind, int | None] = {}
        self._usual_bytes: dict[DeviceKind, int | None] = {}
        self._device_bytes = {
            where: -(-total // self.num_devices) for where, total in self._own.items()
        }

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
        """Bytes over all its devices; ``None`` while unknown."""
        own = self._own.get((neuron, kind))
        if own is not None:
            return own
        if kind not in self._fallback_bytes:
            largest = self._largest.get(kind)
            measured_on = largest[1] if largest else neuron
            needed = self.entry.needed_memory_bytes(measured_on, kind)
            if largest is None and self.entry.costs is not None:
                kv_bytes = self.entry.kv_memory_bytes or 0
                needed = whole_bytes(self.entry.costs, kind) + kv_bytes
            self._fallback_bytes[kind] = needed
        return self._fallback_bytes[kind]

    def least_device_bytes(self, kind: DeviceKind) -> int | None:
        """The least bytes per device over all neurons; ``None`` while unknown."""
        usual = self.device_bytes("", kind)
        if usual is None:
            return None
        return min([usual, *(size for (_, of), size in self._device_bytes.items() if of == kind)])

    def device_bytes(self, neuron: str, kind: DeviceKind) -> int | None:
        """What it needs on each of a neuron's devices. Every decision asks for every neuron."""
        known = self._device_bytes.get((neuron, kind))
        if known is not None:
            return known
        if kind not in self._usual_bytes:
            total = self.total_bytes("", kind)
            self._usual_bytes[kind] = None if total is None else -(-total // self.num_devices)
        return self._usual_bytes[kind]

    def wanted_bytes(self, device_bytes: int) -> int:
        """Free bytes wanted on a device where the model needs ``device_bytes``: enough for
        ``WANTED_CONTEXTS`` contexts at once. A KV size that the operator set is part of the
        need."""
        if self.entry.kv_memory_bytes is not None:
            return device_bytes
        if not self._kv_token_bytes:
            return int(device_bytes * (1 + UNKNOWN_SHARE)) + UNKNOWN_BYTES // self.num_devices
        tokens = WANTED_CONTEXTS * (self.entry.max_context_tokens or USUAL_CONTEXT_TOKENS)
        return device_bytes + tokens * self._kv_token_bytes // self.num_devices
