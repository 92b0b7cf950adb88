"""A catalogue model as plain data, frozen.

Pure: no ORM, no clock, no I/O. ``fleet.models.catalogue`` stores it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from fleet.catalogue.settings import SETTINGS, CatalogueSettings
from fleet.live.measurements import DeviceKind, MeasuredLoad, measured_for
from inference.protocol.adapters import AdapterSpec
from inference.protocol.load import LoadSpec, spec_digest

MIB = 1024**2
TRAVELLING = tuple(name for name, setting in SETTINGS.items() if setting.travels)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry(CatalogueSettings):
    """What the operator offers under one name, resolved: ``name`` is never an alias."""

    name: str
    aliases: tuple[str, ...] = ()
    weight_bytes: int | None = None
    """What its weights took when it was last loaded; ``None`` before the first load."""
    measured_loads: tuple[MeasuredLoad, ...] = ()
    """The last load on each neuron."""
    unloaded_from: tuple[str, ...] = ()
    """Neurons that it was unloaded from although it is kept loaded: so many replicas less are
    kept."""
    created_unix_s: int = 0

    @property
    def effective_min_replicas(self) -> int:
        return max(0, self.configured_min_replicas - len(self.unloaded_from))

    def needed_memory_bytes(self, neuron: str, device_kind: DeviceKind) -> int | None:
        """Free bytes that a load needs there: measured by earlier loads, else the operator's
        estimate; ``None`` while unknown. For a kind of device that it never ran on, the weights
        alone count."""
        if measured := measured_for(self.measured_loads, neuron, device_kind):
            return measured.needed_bytes(self.kv_memory_bytes)
        if self.weight_bytes is not None:
            return self.weight_bytes + (self.kv_memory_bytes or 0)
        return None if self.vram_mb is None else self.vram_mb * MIB

    def last_load_s(self, neuron: str) -> float | None:
        """How long the last load there took; ``None`` where there was none."""
        found = (load.load_s for load in self.measured_loads if load.neuron == neuron)
        return next(found, None)

    def load_spec(self, *, job_id: str, neuron: str) -> LoadSpec:
        """The spec for a load on ``neuron``, with the measurements of its loads there. Unset
        settings have the spec's defaults."""
        measured = measured_for(self.measured_loads, neuron)
        values: dict[str, Any] = {
            name: value for name in TRAVELLING if (value := getattr(self, name)) is not None
        }
        values |= {"job_id": job_id, "model": self.name}
        if measured is not None:
            values["earlier_loads"] = measured.earlier_loads(neuron, self.kv_memory_bytes)
        # As it is once it has travelled: seconds are floats there.
        return msgspec.convert(values, LoadSpec)

    def adapter_spec(self) -> AdapterSpec | None:
        """What loads it, where it is an adapter; ``None`` for a model of its own."""
        if self.base is None:
            return None
        return AdapterSpec(
            name=self.name, source=self.source, revision=self.revision, sha256=self.sha256
        )

    def spec_digest(self) -> str:
        """Of what it is loaded as now. A replica of another digest is outdated."""
        return spec_digest(self.load_spec(job_id="", neuron=""))
