"""A catalogue model as plain, frozen data. Holds the measurements of its loads by neuron, from
which placement and the next load start. No ORM, no clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from fleet.catalogue.settings import TRAVELLING, CatalogueSettings
from fleet.catalogue.targets import Target, UpstreamModel, parse_targets, upstream_of
from fleet.upstreams import UpstreamEntry
from inference.loading.model_costs import ModelCosts
from inference.protocol.load import AdapterSpec, EarlierLoads, LoadSpec, PrefillSpeed, spec_digest
from metering.money import FREE, Prices, UnitPrices, highest

if TYPE_CHECKING:
    from fleet.live.snapshot import FleetSnapshot

MIB = 1024**2
ROOM = 1.1
"""Memory of a loaded model relative to its files' size, with the least useful KV."""
DeviceKind = Literal["cpu", "cuda"]
SHORTEST_CONTEXT_TOKENS = 256
"""A neuron refuses a model if KV of this length does not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLoad:
    neuron: str
    device_kind: DeviceKind
    load_bytes: int
    """All but KV: weights, tables, the activations of the largest step."""
    process_bytes: int
    """Memory of the engine process, beside ``load_bytes``."""
    kv_token_bytes: int
    """KV bytes of one token over all layers; 0 for a model without KV."""
    memory_correction_bytes: int
    """Bytes by which an estimate from the files is too low."""
    load_s: float | None = None
    """From the engine's start until it was loaded."""
    prefill_speed: PrefillSpeed | None
    """Average over the requests since; ``None`` where there were none."""
    context_tokens: int | None = None
    capabilities: tuple[str, ...] | None = None

    def needed_bytes(self, kv_memory_bytes: int | None) -> int:
        """Free bytes needed for another such load, with that KV or with the least useful."""
        kv_bytes = self.kv_token_bytes * SHORTEST_CONTEXT_TOKENS
        return self.load_bytes + self.process_bytes + (kv_memory_bytes or kv_bytes)

    def earlier_loads(self, neuron: str, kv_memory_bytes: int | None = None) -> EarlierLoads:
        """Leaves out speeds of other machines."""
        return EarlierLoads(
            device_kind=self.device_kind,
            needed_bytes=self.needed_bytes(kv_memory_bytes),
            memory_correction_bytes=self.memory_correction_bytes,
            prefill_speed=self.prefill_speed if neuron == self.neuron else None,
        )


def measured_for(
    loads: Iterable[MeasuredLoad], neuron: str, device_kind: DeviceKind | None = None
) -> MeasuredLoad | None:
    """The neuron's own load, else the largest of another neuron with that kind of device."""
    fitting = [load for load in loads if device_kind in (None, load.device_kind)]
    own = [load for load in fitting if load.neuron == neuron]
    return max(own or fitting, key=lambda load: (load.load_bytes, load.neuron), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry(CatalogueSettings):
    """A model on offer, resolved: ``name`` is never an alias."""

    name: str
    aliases: tuple[str, ...] = ()
    weight_bytes: int | None = None
    """Measured at the last load; ``None`` before the first."""
    costs: ModelCosts | None = None
    measured_loads: tuple[MeasuredLoad, ...] = ()
    unloaded_from: tuple[str, ...] = ()
    """Neurons from which a kept model was unloaded: each lowers the minimum by one."""
    created_unix_s: int = 0
    upstream: UpstreamEntry | None = None
    """``None``: the model has files, or its upstream was removed."""
    target_upstreams: tuple[UpstreamEntry, ...] = ()
    """Removed upstreams are missing here."""
    upstream_prices: Mapping[str, Prices] = field(default_factory=dict)
    """Keys are targets' names; the upstreams last named these prices."""

    @property
    def upstream_model(self) -> UpstreamModel | None:
        return upstream_of(self.source)

    @property
    def ordered_targets(self) -> tuple[Target, ...]:
        """There is at least one: the source where the operator has set none."""
        if not self.targets:
            return (Target(upstream_model=self.upstream_model),)
        return parse_targets(self.targets)

    def upstream_named(self, name: str) -> UpstreamEntry | None:
        known = (*self.target_upstreams, *(() if self.upstream is None else (self.upstream,)))
        return next((one for one in known if one.name == name), None)

    def prices_at(self, target: Target) -> Prices:
        """Raises ``KeyError`` where they are the upstream's and it names none."""
        return self._named_prices_at(target) or FREE

    def charges_tokens_at(self, target: Target) -> bool:
        return self._named_prices_at(target) is not None

    def unit_prices_at(self, target: Target) -> UnitPrices:
        if target.prices is None:
            return self.unit_prices
        return target.prices.units or UnitPrices()

    @property
    def highest_prices(self) -> Prices | None:
        """The highest of each kind over all targets; ``None``: the model has no prices."""
        known = (one for one in self.ordered_targets if not self.lacks_prices_at(one))
        found = [prices for one in known if (prices := self._named_prices_at(one)) is not None]
        return highest(found) if found else None

    def _named_prices_at(self, target: Target) -> Prices | None:
        named = target.prices
        if named is None:
            return self.prices
        return self.upstream_prices[target.name] if named.are_upstreams else named.prices

    def lacks_prices_at(self, target: Target) -> bool:
        """Whether the target has its upstream's prices, and the upstream names none."""
        named = target.prices
        return bool(named and named.are_upstreams and target.name not in self.upstream_prices)

    @property
    def effective_min_replicas(self) -> int:
        return max(0, self.configured_min_replicas - len(self.unloaded_from))

    def needed_memory_bytes(self, neuron: str, device_kind: DeviceKind) -> int | None:
        """Measured by earlier loads, else the operator's estimate; ``None``: unknown. For a kind of
        device that it never ran on, the weights alone count."""
        if measured := measured_for(self.measured_loads, neuron, device_kind):
            return measured.needed_bytes(self.kv_memory_bytes)
        if self.weight_bytes is not None:
            return self.weight_bytes + (self.kv_memory_bytes or 0)
        return None if self.vram_mb is None else self.vram_mb * MIB

    def last_load_s(self, neuron: str) -> float | None:
        found = (load.load_s for load in self.measured_loads if load.neuron == neuron)
        return next(found, None)

    def load_spec(self, *, job_id: str, neuron: str) -> LoadSpec:
        """Unset settings have the spec's defaults."""
        measured = measured_for(self.measured_loads, neuron)
        values: dict[str, Any] = {
            name: value for name in TRAVELLING if (value := getattr(self, name)) is not None
        }
        values |= {"job_id": job_id, "model": self.name}
        if measured is not None:
            values["earlier_loads"] = measured.earlier_loads(neuron, self.kv_memory_bytes)
        # Round-tripped as on the wire: seconds are floats there.
        return msgspec.convert(values, LoadSpec)

    def adapter_spec(self) -> AdapterSpec | None:
        if self.base is None:
            return None
        return AdapterSpec(
            name=self.name, source=self.source, revision=self.revision, sha256=self.sha256
        )

    def spec_digest(self) -> str:
        return spec_digest(self.load_spec(job_id="", neuron=""))


def is_outdated(loaded_digest: str, entry: CatalogueEntry) -> bool:
    """``False`` for a neuron that does not report the digest of its spec."""
    return loaded_digest not in ("", entry.spec_digest())


def outdated_neurons(entry: CatalogueEntry, snapshot: FleetSnapshot) -> list[str]:
    return [
        replica.neuron
        for replica in snapshot.replicas_of(entry.name)
        if is_outdated(replica.spec_digest, entry)
    ]


def expected_vram_mb(num_bytes: int) -> int:
    return -(-int(num_bytes * ROOM) // MIB)
