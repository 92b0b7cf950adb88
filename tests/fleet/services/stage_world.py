"""Three neurons, none of which holds a model alone, and a control that ticks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fleet import selectors, services
from fleet.live.snapshot import FleetSnapshot, build_snapshot
from fleet.models import CatalogueModel, LoadJob, Neuron
from fleet.placement import Route, place
from fleet.placement.decisions import Observed
from fleet.services.load_measurements import layer_costs_record
from fleet.services.model_loads import placed_load_start
from fleet.watch import Watched
from inference.loading.model_costs import packed
from inference.protocol import keys
from inference.protocol.heartbeat import (
    HeldStage,
    HeldStageStatus,
    NeuronHeartbeat,
    ReplicaState,
    ReplicaStatus,
)
from inference.protocol.load import LoadSpec, StageOf, StageSpec, own_stages, spec_digest
from inference.protocol.load_report import (
    DeviceMemory,
    LoadFailure,
    LoadProgress,
    LoadStage,
    StageReport,
)
from metering.audit import GATEWAY
from tests.fleet.conftest import GIB, NOW_UNIX_S, offer
from tests.fleet.placement.fleets import dense

LOADING, LISTENING = HeldStageStatus.LOADING, HeldStageStatus.LISTENING
READY, FAILED = HeldStageStatus.READY, HeldStageStatus.FAILED
NAMES = ("a", "b", "c")


@dataclass
class Part:
    """A stage or a replica that a neuron has."""

    spec: LoadSpec
    status: HeldStageStatus | ReplicaStatus
    failure: LoadFailure | None = None

    @property
    def memory_bytes(self) -> int:
        is_held = self.status not in (FAILED, ReplicaStatus.FAILED)
        return sum(one.memory_bytes for one in own_stages(self.spec)) if is_held else 0

    @property
    def of(self) -> StageOf:
        assert self.spec.stage_of is not None
        return self.spec.stage_of

    @property
    def address(self) -> str:
        return f"lan:{self.spec.job_id}-{self.of.index}"

    def fail(self, code: str, message: str) -> None:
        self.status = FAILED if self.spec.stage_of else ReplicaStatus.FAILED
        self.failure = LoadFailure(code=code, message=message)


@dataclass
class FakeNeuron:
    name: str
    build: Any
    total_bytes: int
    stages: list[Part] = field(default_factory=list)
    replicas: dict[str, Part] = field(default_factory=dict)
    is_alive: bool = True
    busy: set[str] = field(default_factory=set)  # models with a request that placement sees late

    @property
    def free_bytes(self) -> int:
        parts = [*self.stages, *self.replicas.values()]
        return self.total_bytes - sum(one.memory_bytes for one in parts)

    def end(self) -> None:
        self.stages, self.replicas = [], {}

    def take(self, task: str, arguments: list[Any]) -> None:
        if task == keys.TASK_RELEASE_STAGES:
            self.stages = [one for one in self.stages if one.spec.job_id != arguments[1]]
        elif task == keys.TASK_UNLOAD_MODEL:
            self.replicas.pop(arguments[0], None)
        elif task == keys.TASK_LOAD_MODEL:
            spec = msgspec.convert(arguments[0], LoadSpec)
            assert spec.link_identity is not None
            part = Part(spec, ReplicaStatus.LOADING if spec.stage_of is None else LOADING)
            if spec.stage_of is None:
                self.replicas[spec.model] = part
            else:
                self.stages = [one for one in self.stages if one.of.index != part.of.index]
            if in_use := self.busy & {*spec.evict}:
                part.fail("lost_its_room", f"{min(in_use)} is in use")
            for model in () if in_use else spec.evict:
                self.replicas.pop(model, None)
            if spec.stage_of is not None:
                if part.memory_bytes > self.free_bytes:
                    part.fail("does_not_fit", "there is no room")
                self.stages.append(part)

    def hold(self, model: str, num_bytes: int) -> None:
        stage = StageSpec(device="cuda:0", layers=(0, 1), memory_bytes=num_bytes)
        spec = LoadSpec(job_id="earlier", model=model, source="pypi:one", stages=[stage])
        self.replicas[model] = Part(spec, ReplicaStatus.READY)

    def heartbeat(self) -> NeuronHeartbeat:
        sizes = {"total_memory_bytes": self.total_bytes, "free_memory_bytes": self.free_bytes}
        return self.build.heartbeat(
            name=self.name,
            devices=[self.build.device(kind="cuda", **sizes)],
            stage_host=f"{self.name}.lan",
            stages=[self._stage_state(one) for one in self.stages],
            replicas=[self._replica_state(one) for one in self.replicas.values()],
        )

    def _state(self, one: Part) -> dict[str, Any]:
        names = ("model", "job_id", "order")
        return {name: getattr(one.spec, name) for name in names} | {
            "status": one.status,
            "since_unix_s": NOW_UNIX_S - 60,
            "spec_digest": spec_digest(one.spec),
            "memory_bytes": one.memory_bytes,
            "failure": one.failure,
        }

    def _stage_state(self, one: Part) -> HeldStage:
        stage = one.spec.stages[one.of.index]
        return HeldStage(
            **self._state(one),
            engine_neuron=one.of.engine_neuron,
            index=one.of.index,
            num_stages=len(one.spec.stages),
            layers=stage.layers,
            device=stage.device,
            address=one.address if one.status in (LISTENING, READY) else "",
            progress=LoadProgress(stage=LoadStage.DOWNLOADING, done=1, total=2),
        )

    def _replica_state(self, one: Part) -> ReplicaState:
        stages = [
            StageReport(
                device=stage.device,
                layers=stage.layers,
                execution="fake",
                estimated_bytes=stage.memory_bytes,
                kv_bytes=1,
                neuron=stage.neuron,
            )
            for stage in one.spec.stages
        ]
        memory = [
            DeviceMemory(device=stage.device, actual_bytes=stage.memory_bytes, process_bytes=0)
            for stage in own_stages(one.spec)
        ]
        is_ready = one.status is ReplicaStatus.READY
        report = self.build.report(stages=stages, stage_memory=memory) if is_ready else None
        return self.build.replica(report=report, stats=self.build.stats(), **self._state(one))


class World:
    """The three neurons, the links between them, and a control that ticks. An engine has its
    stages while all of them are there."""

    def __init__(self, build: Any, sent: Any) -> None:
        self.neurons = {name: FakeNeuron(name, build, 24 * GIB) for name in NAMES}
        self.sent = sent
        self.specs: list[tuple[str, LoadSpec]] = []  # that were sent, each with its queue
        for table in (LoadJob, Neuron, CatalogueModel):
            table.objects.all().delete()
        self.sent.tasks.clear()
        offer("large", source="huggingface:org/large", spread="fleet")
        # No neuron of 24 GiB holds it, and any two do.
        layer_costs_record(model=CatalogueModel.objects.get(), costs=packed(dense(40)))
        selectors.catalogue_cache_clear()

    def living(self) -> Iterator[FakeNeuron]:
        return (one for one in self.neurons.values() if one.is_alive)

    def work(self) -> None:
        """Stages listen, engines join theirs, and what has lost its other half ends."""
        for stage in (stage for neuron in self.living() for stage in neuron.stages):
            if stage.status is LOADING:
                stage.status = LISTENING
        for neuron in self.living():
            for replica in list(neuron.replicas.values()):
                self._follow(neuron, replica)
        for neuron in self.living():
            neuron.stages = [one for one in neuron.stages if not self._is_orphan(one)]

    def _follow(self, neuron: FakeNeuron, replica: Part) -> None:
        spec = replica.spec
        far = [self._end_of(spec, index) for index, one in enumerate(spec.stages) if one.neuron]
        found = [one for one in far if one is not None]
        if replica.status is ReplicaStatus.LOADING:
            if neuron.free_bytes < 0:
                replica.fail("does_not_fit", "the engine has no room")
            elif len(found) == len(far) and all(one.status is LISTENING for one in found):
                for one in found:
                    one.status = READY
                replica.status = ReplicaStatus.READY
            else:
                replica.fail("device_fault", "a stage is gone")
        elif replica.status is ReplicaStatus.READY and (
            len(found) < len(far) or any(one.status is not READY for one in found)
        ):
            del neuron.replicas[spec.model]

    def _end_of(self, spec: LoadSpec, index: int) -> Part | None:
        """The stage at that address that proves itself by the certificate of the engine's load,
        and accepts the engine's."""
        wanted = spec.stages[index]
        assert wanted.certificate and wanted.address and spec.link_identity is not None
        neuron = self.neurons[wanted.neuron]
        for one in neuron.stages if neuron.is_alive else []:
            assert one.spec.link_identity is not None
            ends = (one.address, one.spec.link_identity.certificate, one.of.engine_certificate)
            if ends == (wanted.address, wanted.certificate, spec.link_identity.certificate):
                return one
        return None

    def _is_orphan(self, one: Part) -> bool:
        """It had an engine, which is gone."""
        engine = self.neurons[one.of.engine_neuron]
        replica = engine.replicas.get(one.spec.model) if engine.is_alive else None
        has_engine = replica is not None and replica.status is ReplicaStatus.READY
        return one.status is READY and not (
            has_engine and self._end_of(replica.spec, one.of.index) is one
        )

    def snapshot(self) -> FleetSnapshot:
        return build_snapshot([one.heartbeat() for one in self.living()])

    def tick(self, *, works: bool = True) -> None:
        """A second: neurons work and report, the control records and decides, messages arrive."""
        if works:
            self.work()
        beats = [one.heartbeat() for one in self.living()]
        for beat in beats:
            services.heartbeat_record(heartbeat=beat)
        snapshot = build_snapshot(beats)
        services.silent_neurons_mark_away(snapshot=snapshot)
        services.stage_loads_advance(snapshot=snapshot)
        services.load_jobs_expire()
        services.held_stages_release(snapshot=snapshot)
        plan = services.fleet_plan(watched=Watched(snapshot, Observed(), ()), time_slices=())
        services.plan_begin(plan=plan)
        self.deliver()

    def deliver(self) -> None:
        """Messages to neurons that are away are lost."""
        tasks, self.sent.tasks = self.sent.tasks, []
        by_queue = {keys.neuron_queue(name): one for name, one in self.neurons.items()}
        for task, arguments, options in tasks:
            if task == keys.TASK_LOAD_MODEL:
                self.specs.append((options["queue"], msgspec.convert(arguments[0], LoadSpec)))
            neuron = by_queue[options["queue"]]
            if neuron.is_alive:
                neuron.take(task, arguments)

    def request(self) -> Any:
        """What a gateway does for a request."""
        entry = selectors.catalogue_find("large")
        assert entry is not None
        decision = place(entry, self.snapshot(), catalogue=selectors.catalogue_by_name())
        if hasattr(decision, "stages"):
            placed_load_start(actor=GATEWAY, load=decision)
        return decision

    def held(self) -> dict[str, int]:
        return {one.name: one.total_bytes - one.free_bytes for one in self.living()}

    def load(self) -> str:
        """Loads the model. Returns its engine's neuron."""
        self.tick()
        for _ in range(6):
            if isinstance(decision := self.request(), Route):
                return decision.neuron
            self.tick()
        raise AssertionError(list(LoadJob.objects.values("status", "failure_message")))

    def settle(self) -> None:
        for _ in range(4):
            self.tick()
