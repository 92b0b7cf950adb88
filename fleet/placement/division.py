"""Divides a model that no device could hold into layer ranges on devices of one neuron, or of
several. Pure.

    no device could hold it ──▶ plan_stages on free memory
                            ──▶                 … and on that of replicas that may leave now
                            ──▶                 … and of those that leave after a time slice
    no neuron could hold it ──▶ plan_stages over several (``spread`` fleet), in the first two ways

A model that one device could hold, were nothing else on it, is never divided, and one that the
devices of one neuron could hold never lies on several.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from fleet.catalogue import CatalogueEntry
from fleet.live.desired_state import KnownDevice
from fleet.live.snapshot import ReplicaView
from fleet.placement.capacity import (
    Clearing,
    DeviceCapacity,
    EvictionCandidate,
    FleetCapacity,
    cleared,
    freed_by,
)
from fleet.placement.decisions import PlacementCandidate
from fleet.placement.needs import BY_KIND, LEAST_TOKENS, Needs, StageDevice, speed_of
from fleet.placement.stage_plans import (
    KV_TOKENS_TRIED,
    Spread,
    StagePlan,
    StageRefusal,
    divided,
    least_bytes,
)
from inference.loading.model_costs import ModelCosts
from inference.protocol.heartbeat import DeviceInfo
from inference.protocol.load import StageSpec

Devices = Sequence[DeviceInfo | KnownDevice]
NOT_OF_STAGES = ("draft_model", "mtp")


def why_not_divided(entry: CatalogueEntry) -> str | None:
    if entry.spread == "device":
        return "spread is device"
    if entry.tensor_parallel > 1 or entry.min_devices > 1:
        return f"tensor_parallel is {entry.tensor_parallel}"
    if entry.speculation in NOT_OF_STAGES:
        return f"speculation is {entry.speculation}"
    return None if entry.prefix_disk_bytes is None else "prefix_disk_bytes is set"


@dataclass(frozen=True, slots=True)
class Division:
    """A model that no device of ``capacity`` could hold, and that may be divided."""

    needs: Needs
    costs: ModelCosts
    devices: Sequence[DeviceCapacity]
    spread: Spread = "host"
    """``fleet`` where it may use several neurons, and none of them could hold it alone."""

    @classmethod
    def of(cls, needs: Needs, capacity: FleetCapacity) -> Division | None:
        costs = needs.entry.costs
        if costs is None or why_not_divided(needs.entry) or could_be_whole(needs, capacity):
            return None
        division = cls(needs, costs, tuple(usable(needs, capacity)))
        if needs.entry.spread != "fleet" or isinstance(division.in_all(), StagePlan):
            return division
        lending = tuple(one for one in division.devices if one.neuron.stage_host)
        return replace(division, devices=lending, spread="fleet")

    def in_all(self) -> StagePlan | StageRefusal:
        return self._planned((), could_be_free, (self._least_tokens,))

    def now(self) -> StagePlan | StageRefusal:
        entry = self.needs.entry
        return self._planned((), lambda one: one.free_bytes(entry.name), (self._least_tokens,))

    def candidate(self, excluded: Collection[str], clearing: Clearing) -> PlacementCandidate | None:
        """The devices are on one neuron, or on several that have the memory together; the engine is
        on the first stage's. No replica in use is evicted for a model on several neurons."""
        if clearing is not Clearing.IN_USE:
            return self._candidate(excluded, clearing, heeds_promises=True)
        if self.spread == "fleet":
            return None
        found = self._candidate(excluded, clearing, heeds_promises=True)
        return found or self._candidate(excluded, clearing, heeds_promises=False)

    @property
    def _least_tokens(self) -> int:
        return self._asked_tokens or LEAST_TOKENS

    @property
    def _asked_tokens(self) -> int | None:
        if self.needs.entry.kv_memory_bytes is None:
            return None
        token_bytes = sum(layer.kv_token_bytes.cuda for layer in self.costs.layers)
        return max(1, self.needs.entry.kv_memory_bytes // max(1, token_bytes))

    def _candidate(
        self, excluded: Collection[str], clearing: Clearing, *, heeds_promises: bool
    ) -> PlacementCandidate | None:
        entry = self.needs.entry

        def free_bytes(device: DeviceCapacity) -> int:
            own = device.free_bytes(entry.name)
            if not heeds_promises:
                own = device.info.free_memory_bytes
            return own + sum(one.freed_bytes for one in freed_by(clearing, entry, device))

        tokens = KV_TOKENS_TRIED if clearing is Clearing.NOTHING else (LEAST_TOKENS,)
        if self._asked_tokens is not None:
            tokens = (self._asked_tokens,)
        plan = self._planned(excluded, free_bytes, tokens)
        if not isinstance(plan, StagePlan):
            return None
        neuron = plan.neurons[0]
        by_name = {(one.neuron.name, one.name): one for one in self.devices}
        stages: list[StageSpec] = []
        evicted: dict[str, EvictionCandidate] = {}
        is_promised = False
        for planned in plan.stages:
            stage = StageSpec(
                device=planned.device,
                layers=(planned.first_layer, planned.last_layer),
                memory_bytes=least_bytes(self.costs, planned, self._least_tokens),
            )
            device = by_name[planned.neuron, planned.device]
            found = cleared(device, entry, stage.memory_bytes, clearing)
            if found is None:
                return None
            leaving = {one.replica.model: one for one in found[0]}
            is_promised |= found[1]
            if planned.neuron == neuron:
                evicted |= leaving
            else:
                changes = {"neuron": planned.neuron, "evict": sorted(leaving)}
                stage = msgspec.structs.replace(stage, **changes)
            stages.append(stage)
        return PlacementCandidate(
            neuron,
            tuple(stage.device for stage in stages if not stage.neuron),
            max(stage.memory_bytes for stage in stages),
            tuple(evicted.values()),
            is_promised=is_promised,
            stages=tuple(stages),
            predicted_tokens_per_s=plan.tokens_per_s,
        )

    def _planned(
        self,
        excluded: Collection[str],
        free_bytes: Callable[[DeviceCapacity], int],
        tokens: Sequence[int],
    ) -> StagePlan | StageRefusal:
        among = (one for one in self.devices if one.neuron.name not in excluded)
        return divided(self.costs, stage_devices(among, free_bytes), tokens, self.spread)


def could_be_free(device: DeviceCapacity) -> int:
    return device.could_be_free


def stage_devices(
    devices: Iterable[DeviceCapacity], free_bytes: Callable[[DeviceCapacity], int]
) -> list[StageDevice]:
    return [
        StageDevice(
            neuron=one.neuron.name,
            name=one.name,
            kind=one.info.kind,
            free_bytes=max(0, free_bytes(one)),
            speed=speed_of(one.info, one.neuron.num_cores),
        )
        for one in devices
    ]


def usable(needs: Needs, capacity: FleetCapacity) -> Iterator[DeviceCapacity]:
    """Leaves out processors that share memory with a card: they have none of their own."""
    by_kind = [capacity.of_kind(needs.entry, kind) for kind in needs.kinds]
    for name in sorted({name for by_name in by_kind for name in by_name}):
        found = [
            device
            for by_name in by_kind
            for device in by_name.get(name, ())
            if device.info.total_memory_bytes >= needs.least_total_bytes
        ]
        is_shared = any(device.info.has_host_memory for device in found)
        yield from (one for one in found if not (is_shared and one.info.kind == "cpu"))


def could_be_whole(
    needs: Needs,
    capacity: FleetCapacity,
    size_of: Callable[[DeviceCapacity], int] = could_be_free,
) -> bool:
    """``size_of``: a device's bytes, by default if no other model were there. ``False`` where
    neither the model's need nor its layers are known."""
    return any(
        size_of(device) >= each and device.info.total_memory_bytes >= needs.least_total_bytes
        for kind in needs.kinds
        for name, here in capacity.of_kind(needs.entry, kind).items()
        if (each := needs.device_bytes(name, kind)) is not None
        for device in here
    )


def held_stages(entry: CatalogueEntry, replica: ReplicaView | None) -> tuple[StageSpec, ...]:
    """For a reload of the same layers in place; empty: it is whole, or its weights have changed."""
    report = None if replica is None else replica.report
    if report is None or len(report.stage_memory) < 2 or why_not_divided(entry):
        return ()
    if any(one.neuron for one in report.stages):
        return ()  # stages on other neurons are placed by free memory
    num_layers = report.stages[-1].layers[1]
    if entry.costs is None or len(entry.costs.layers) != num_layers:
        return ()
    return tuple(
        StageSpec(device=one.device, layers=one.layers, memory_bytes=one.estimated_bytes)
        for one in report.stages
    )


def is_large_enough(needs: Needs, neuron: str, devices: Devices) -> bool:
    """Whole or divided, ignoring their load. If the need is unknown, their number decides."""
    for kind in needs.kinds:
        least = max(needs.least_total_bytes, needs.device_bytes(neuron, kind) or 0)
        sizes = [device.total_memory_bytes for device in devices if device.kind == kind]
        if sum(size >= least for size in sizes) >= needs.num_devices:
            return True
    return _are_large_enough_together(needs, neuron, devices)


def _are_large_enough_together(needs: Needs, neuron: str, devices: Devices) -> bool:
    """Ignores their load. While the layers' costs are unknown, the devices' total size decides."""
    entry = needs.entry
    usable = [
        one
        for one in devices
        if one.kind in needs.kinds and one.total_memory_bytes >= needs.least_total_bytes
    ]
    if why_not_divided(entry) or len(usable) < 2:
        return False
    if entry.costs is None:
        needed = max((needs.device_bytes(neuron, kind) or 0 for kind in needs.kinds), default=0)
        return sum(one.total_memory_bytes for one in usable) >= needed
    stage_devices = [
        StageDevice(
            neuron=neuron,
            name=f"{one.kind}:{index}",
            kind=one.kind,
            free_bytes=one.total_memory_bytes,
            speed=BY_KIND[one.kind],
        )
        for index, one in enumerate(usable)
    ]
    return isinstance(divided(entry.costs, stage_devices, (LEAST_TOKENS,)), StagePlan)


def to_weigh(
    needs: Needs, capacity: FleetCapacity, excluded: Collection[str]
) -> PlacementCandidate | None:
    """A neuron that tries the whole model, which fits no device by the operator's estimate, to
    measure its layers. ``None`` where their costs or the model's need are known."""
    entry = needs.entry
    if entry.costs is not None or entry.measured_loads or why_not_divided(entry):
        return None
    if could_be_whole(needs, capacity, size_of=lambda one: one.info.total_memory_bytes):
        return None
    options = [
        (device.free_bytes(entry.name), name, device.name)
        for kind in needs.kinds
        for name, here in capacity.of_kind(entry, kind, excluded).items()
        if _are_large_enough_together(needs, name, here[0].neuron.devices)
        for device in here
    ]
    if not options:
        return None
    _, neuron, device_name = max(options)
    return PlacementCandidate(neuron, (device_name,), None)
