"""The simulated fleet: the models on each card, and the view that a policy decides by."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from benchmarks.fleet_simulation.scenario import Scenario, SimModel
from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView
from fleet.live.time_slices import TimeSlice
from inference.protocol.heartbeat import DeviceInfo, ReplicaStatus
from inference.protocol.load_report import LoadReport


@dataclass(slots=True)
class SimReplica:
    neuron: str
    model: SimModel
    cards: tuple[int, ...]
    since_s: float
    ready_at_s: float
    last_used_s: float | None = None
    in_flight: int = 0
    is_draining: bool = False
    report: LoadReport = field(init=False)

    def __post_init__(self) -> None:
        self.report = _report(self.model)

    def is_ready(self, now_s: float) -> bool:
        return self.ready_at_s <= now_s and not self.is_draining


@dataclass(slots=True)
class SimFleet:
    scenario: Scenario
    replicas: dict[str, dict[str, SimReplica]] = field(default_factory=dict)
    """The replicas by neuron, then model."""
    dead: set[tuple[str, int]] = field(default_factory=set)
    holders: defaultdict[str, dict[str, SimReplica]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    """The same by model, then neuron."""

    def __post_init__(self) -> None:
        self.replicas = {name: {} for name in self.scenario.cards}

    def of_model(self, model: str) -> list[SimReplica]:
        return list(self.holders[model].values())

    def add(self, replica: SimReplica) -> None:
        self.replicas[replica.neuron][replica.model.name] = replica
        self.holders[replica.model.name][replica.neuron] = replica

    def remove(self, replica: SimReplica) -> None:
        del self.replicas[replica.neuron][replica.model.name]
        del self.holders[replica.model.name][replica.neuron]

    def free_bytes(self, neuron: str, card: int) -> int:
        taken = sum(
            replica.model.device_bytes
            for replica in self.replicas[neuron].values()
            if card in replica.cards
        )
        return self.scenario.cards[neuron][card] - taken

    def snapshot(self, now_s: float, time_slices: tuple[TimeSlice, ...] = ()) -> FleetSnapshot:
        return FleetSnapshot(
            neurons=tuple(self._neuron(name, now_s) for name in self.scenario.cards),
            time_slices=time_slices,
        )

    def _neuron(self, name: str, now_s: float) -> NeuronView:
        return NeuronView(
            name=name,
            epoch="",
            version="",
            devices=tuple(
                DeviceInfo(
                    index=index,
                    kind="cuda",
                    name="",
                    total_memory_bytes=total,
                    free_memory_bytes=self.free_bytes(name, index),
                )
                for index, total in enumerate(self.scenario.cards[name])
                if (name, index) not in self.dead
            ),
            replicas=tuple(_view(replica, now_s) for replica in self.replicas[name].values()),
        )


def _view(replica: SimReplica, now_s: float) -> ReplicaView:
    is_loaded = replica.ready_at_s <= now_s
    status = ReplicaStatus.READY if is_loaded else ReplicaStatus.LOADING
    used_s = replica.last_used_s
    return ReplicaView(
        neuron=replica.neuron,
        model=replica.model.name,
        job_id="",
        status=ReplicaStatus.DRAINING if replica.is_draining else status,
        status_age_s=now_s - (replica.ready_at_s if is_loaded else replica.since_s),
        in_flight=replica.in_flight,
        devices=tuple(f"cuda:{card}" for card in replica.cards),
        memory_bytes=replica.model.size_bytes,
        last_used_age_s=None if used_s is None else max(0.0, now_s - used_s),
        report=replica.report,
    )


def _report(model: SimModel) -> LoadReport:
    return LoadReport(
        architecture="",
        device="cuda",
        dtype="",
        num_parameters=0,
        weight_bytes=model.size_bytes,
        kv_bytes=0,
        num_kv_blocks=0,
        kv_block_tokens=0,
        context_tokens=0,
        vocab_size=0,
        quantization="",
        compiled="",
        load_seconds=model.load_s,
        tokenizer_dir="",
    )
