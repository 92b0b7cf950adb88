"""A catalogue model as plain data, frozen.

Pure: no ORM, no clock, no I/O. ``fleet.models.catalogue`` stores it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fleet.catalogue.settings import TRAVELLING, CatalogueSettings
from fleet.catalogue.targets import Target, UpstreamModel, parse_targets, upstream_of
from fleet.live.measurements import DeviceKind, MeasuredLoad, measured_for
from fleet.upstreams.entry import UpstreamEntry
from inference.loading.costs.model_costs import ModelCosts
from inference.protocol.load import AdapterSpec, LoadSpec, spec_digest
from metering.money import FREE, Prices, UnitPrices, highest

MIB = 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry(CatalogueSettings):
    """A model on offer, resolved: ``name`` is never an alias."""

    name: str
    aliases: tuple[str, ...] = ()
    weight_bytes: int | None = None
    """Size of its weights when it was last loaded; ``None`` before the first load."""
    costs: ModelCosts | None = None
    """Costs of its layers; ``None`` while unknown."""
    measured_loads: tuple[MeasuredLoad, ...] = ()
    unloaded_from: tuple[str, ...] = ()
    """Neurons that it was unloaded from although it is kept loaded: fewer replicas are kept by as
    many."""
    created_unix_s: int = 0
    upstream: UpstreamEntry | None = None
    """Serves a model without files; ``None`` also where it has been removed."""
    target_upstreams: tuple[UpstreamEntry, ...] = ()
    """The upstreams that its targets name, without removed ones."""
    upstream_prices: Mapping[str, Prices] = field(default_factory=dict)
    """Prices by target's name, for targets with their upstream's prices, as it last named them."""

    @property
    def upstream_model(self) -> UpstreamModel | None:
        """``None``: it has files, and neurons load them."""
        return upstream_of(self.source)

    @property
    def ordered_targets(self) -> tuple[Target, ...]:
        """The model's targets: at least one, its source where the operator has set none."""
        if not self.targets:
            return (Target(upstream_model=self.upstream_model),)
        return parse_targets(self.targets)

    def upstream_named(self, name: str) -> UpstreamEntry | None:
        """Returns the upstream of that name, from the source or a target. ``None``: it has been
        removed."""
        known = (*self.target_upstreams, *(() if self.upstream is None else (self.upstream,)))
        return next((one for one in known if one.name == name), None)

    def prices_at(self, target: Target) -> Prices:
        """Returns the prices of tokens where that target serves. Raises ``KeyError`` where they are
        the upstream's and it names none."""
        return self._named_prices_at(target) or FREE

    def charges_tokens_at(self, target: Target) -> bool:
        return self._named_prices_at(target) is not None

    def unit_prices_at(self, target: Target) -> UnitPrices:
        if target.prices is None:
            return self.unit_prices
        return target.prices.units or UnitPrices()

    @property
    def highest_prices(self) -> Prices | None:
        """A price of each kind that no target's is above; ``None``: it has no prices."""
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
        """Free bytes that a load needs there: measured by earlier loads, else the operator's
        estimate; ``None`` while unknown. For a kind of device that it never ran on, the weights
        alone count."""
        if measured := measured_for(self.measured_loads, neuron, device_kind):
            return measured.needed_bytes(self.kv_memory_bytes)
        if self.weight_bytes is not None:
            return self.weight_bytes + (self.kv_memory_bytes or 0)
        return None if self.vram_mb is None else self.vram_mb * MIB

    def last_load_s(self, neuron: str) -> float | None:
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
        # Round-tripped as on the wire: seconds are floats there.
        return msgspec.convert(values, LoadSpec)

    def adapter_spec(self) -> AdapterSpec | None:
        """The adapter's spec; ``None`` for a model of its own."""
        if self.base is None:
            return None
        return AdapterSpec(
            name=self.name, source=self.source, revision=self.revision, sha256=self.sha256
        )

    def spec_digest(self) -> str:
        """The digest of the spec of a load now. A replica of another digest is outdated."""
        return spec_digest(self.load_spec(job_id="", neuron=""))
