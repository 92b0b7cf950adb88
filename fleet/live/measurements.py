"""Measurements of a model's loads by neuron, as plain data.

Placement uses them for a model that is not loaded, and the next load starts from them.

Pure: no ORM, no clock, no I/O. ``fleet.models.job`` stores them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from inference.protocol.load import EarlierLoads, PrefillSpeed

DeviceKind = Literal["cpu", "cuda"]

SHORTEST_CONTEXT_TOKENS = 256
"""A neuron refuses a model if KV of this length does not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLoad:
    """The last load of one model on one neuron."""

    neuron: str
    device_kind: DeviceKind
    load_bytes: int
    """All but KV: weights, tables, the activations of the largest step."""
    process_bytes: int
    """Memory of the engine process itself, beside that."""
    kv_token_bytes: int
    """KV bytes of one token over all layers; 0 for a model without KV."""
    memory_correction_bytes: int
    """Bytes by which an estimate from the files is too low."""
    load_s: float | None = None
    """Seconds from its engine's start until it was loaded; ``None`` where they were not
    measured."""
    prefill_speed: PrefillSpeed | None
    """Average over the requests since; ``None`` where there were none."""
    context_tokens: int | None = None
    """The enforced limit; ``None`` where it was not recorded."""
    capabilities: tuple[str, ...] | None = None
    """``None`` where they were not recorded."""

    def needed_bytes(self, kv_memory_bytes: int | None) -> int:
        """Free bytes needed for another such load, with that KV or with the least useful."""
        kv_bytes = self.kv_token_bytes * SHORTEST_CONTEXT_TOKENS
        return self.load_bytes + self.process_bytes + (kv_memory_bytes or kv_bytes)

    def earlier_loads(self, neuron: str, kv_memory_bytes: int | None = None) -> EarlierLoads:
        """The prediction of a load on ``neuron`` with that KV. Speeds of other machines are left
        out."""
        return EarlierLoads(
            device_kind=self.device_kind,
            needed_bytes=self.needed_bytes(kv_memory_bytes),
            memory_correction_bytes=self.memory_correction_bytes,
            prefill_speed=self.prefill_speed if neuron == self.neuron else None,
        )


def measured_for(
    loads: Iterable[MeasuredLoad], neuron: str, device_kind: DeviceKind | None = None
) -> MeasuredLoad | None:
    """The measurement for that neuron: its own load, else the largest of another with a device of
    that kind (of any kind, if ``device_kind`` is ``None``)."""
    fitting = [load for load in loads if device_kind in (None, load.device_kind)]
    own = [load for load in fitting if load.neuron == neuron]
    return max(own or fitting, key=lambda load: (load.load_bytes, load.neuron), default=None)
