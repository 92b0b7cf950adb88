"""Three neurons, none of which holds a model alone, in a few lines: memory, orders, links and ends;
and a control that ticks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fleet import selectors, services
from fleet.control.watch import Watched
from fleet.live.snapshot import FleetSnapshot, build_snapshot
from fleet.models import CatalogueModel, LoadJob, Neuron
from fleet.placement import Route, place
from fleet.placement.decisions import Observed
from fleet.services.jobs.load_measurements import layer_costs_record
from fleet.services.jobs.model_loads import placed_load_start
from inference.loading.costs.model_costs import packed
from inference.protocol import keys
from inference.protocol.heartbeat import (
    HeldStage,
    HeldStageStatus,
    NeuronHeartbeat,
    ReplicaState,
    ReplicaStatus,
)
from inference.protocol.load import LoadSpec, StageSpec, own_stages, spec_digest
from inference.protocol.load_progress import LoadFailure, LoadProgress, LoadStage
from inference.protocol.load_report import DeviceMemory, StageReport
from metering.actor import COMMAND, GATEWAY
from tests.fleet.placement.fleets import dense

GIB = 1024**3
NOW_UNIX_S = 1_700_000_000.0
LOADING, LISTENING = HeldStageStatus.LOADING, HeldStageStatus.LISTENING
READY, FAILED = HeldStageStatus.READY, HeldStageStatus.FAILED


@dataclass
class FakeStage:
    spec: LoadSpec
    status: HeldStageStatus = LOADING
    failure: LoadFailure | None = None

    @property
    def address(self) -> str:
        assert self.spec.stage_of is not None
        return f"lan:{self.spec.job_id}-{self.spec.stage_of.index}"

    @property
    def memory_bytes(self) -> int:
        return 0 if self.status is FAILED else own_stages(self.spec)[0].memory_bytes


@dataclass
class FakeReplica:
    spec: LoadSpec
    status: ReplicaStatus = ReplicaStatus.LOADING
    failure: LoadFailure | None = None

    @property
    def memory_bytes(self) -> int:
        is_held = self.status is not ReplicaStatus.FAILED
        return sum(one.memory_bytes for one in own_stages(self.spec)) if is_held else 0


@dataclass
class FakeNeuron:
    name: str
    build: Any
    total_bytes: int
    stages: list[FakeStage] = field(default_factory=list)
    replicas: dict[str, FakeReplica] = field(default_factory=dict)
    is_alive: bool = True
    taken_bytes: int = 0
    """Memory that something else takes, which placement sees a second late."""
    busy: set[str] = field(default_factory=set)
    """Models with a request, which placement sees a second late."""

    @property
    def free_bytes(self) -> int:
        parts = [*self.stages, *self.replicas.values()]
        return self.total_bytes - self.taken_bytes - sum(one.memory_bytes for one in parts)

    def end(self) -> None:
        """Its process ends, and starts again empty."""
        self.stages, self.replicas = [], {}

    def take(self, task: str, arguments: list[Any]) -> None:
        match task:
            case keys.TASK_LOAD_MODEL:
                spec = msgspec.convert(arguments[0], LoadSpec)
                assert spec.link_identity is not None
                if spec.stage_of is None:
                    lost = self._evict(spec)
                    status = ReplicaStatus.LOADING if lost is None else ReplicaStatus.FAILED
                    self.replicas[spec.model] = FakeReplica(spec, status, lost)
                else:
                    self._hold(spec, spec.stage_of.index)
            case keys.TASK_RELEASE_STAGES:
                _, job_id = arguments
                self.stages = [one for one in self.stages if one.spec.job_id != job_id]
            case keys.TASK_UNLOAD_MODEL:
                self.replicas.pop(arguments[0], None)

    def _hold(self, spec: LoadSpec, index: int) -> None:
        def is_same(one: FakeStage) -> bool:
            return one.spec.stage_of is not None and one.spec.stage_of.index == index

        self.stages = [one for one in self.stages if not is_same(one)]
        stage = FakeStage(spec)
        if lost := self._evict(spec):
            stage.status, stage.failure = FAILED, lost
        elif stage.memory_bytes > self.free_bytes:
            stage.status = FAILED
            stage.failure = LoadFailure(code="does_not_fit", message="there is no room")
        self.stages.append(stage)

    def hold(self, model: str, num_bytes: int) -> None:
        """An idle replica of that model, loaded a minute ago."""
        stage = StageSpec(device="cuda:0", layers=(0, 1), memory_bytes=num_bytes)
        spec = LoadSpec(job_id="earlier", model=model, source="pypi:one", stages=[stage])
        self.replicas[model] = FakeReplica(spec, ReplicaStatus.READY)

    def _evict(self, spec: LoadSpec) -> LoadFailure | None:
        """Unloads what the order names, or, as one of it is in use, nothing."""
        if busy := self.busy & {*spec.evict}:
            return LoadFailure(code="lost_its_room", message=f"{min(busy)} is in use")
        for model in spec.evict:
            self.replicas.pop(model, None)
        return None

    def work(self) -> None:
        """Files of its stages are fetched, and they listen."""
        for stage in self.stages:
            if stage.status is LOADING:
                stage.status = LISTENING

    def heartbeat(self) -> NeuronHeartbeat:
        devices = [
            self.build.device(
                kind="cuda", total_memory_bytes=self.total_bytes, free_memory_bytes=self.free_bytes
            )
        ]
        beat: NeuronHeartbeat = self.build.heartbeat(
            name=self.name,
            devices=devices,
            stage_host=f"{self.name}.lan",
            stages=[self._stage_state(one) for one in self.stages],
            replicas=[self._replica_state(one) for one in self.replicas.values()],
        )
        return beat

    def _stage_state(self, one: FakeStage) -> HeldStage:
        spec, of = one.spec, one.spec.stage_of
        assert of is not None
        stage = spec.stages[of.index]
        return HeldStage(
            model=spec.model,
            job_id=spec.job_id,
            order=spec.order,
            engine_neuron=of.engine_neuron,
            index=of.index,
            num_stages=len(spec.stages),
            layers=stage.layers,
            device=stage.device,
            status=one.status,
            since_unix_s=NOW_UNIX_S - 60,
            spec_digest=spec_digest(spec),
            memory_bytes=one.memory_bytes,
            address=one.address if one.status in (LISTENING, READY) else "",
            progress=LoadProgress(stage=LoadStage.DOWNLOADING, done=1, total=2),
            failure=one.failure,
        )

    def _replica_state(self, one: FakeReplica) -> ReplicaState:
        report = None
        if one.status is ReplicaStatus.READY:
            report = self.build.report(
                stages=[
                    StageReport(
                        device=stage.device,
                        layers=stage.layers,
                        execution="fake",
                        estimated_bytes=stage.memory_bytes,
                        kv_bytes=1,
                        neuron=stage.neuron,
                    )
                    for stage in one.spec.stages
                ],
                stage_memory=[
                    DeviceMemory(
                        device=stage.device,
                        actual_bytes=stage.memory_bytes,
                        process_bytes=0,
                    )
                    for stage in own_stages(one.spec)
                ],
            )
        state: ReplicaState = self.build.replica(
            model=one.spec.model,
            job_id=one.spec.job_id,
            order=one.spec.order,
            status=one.status,
            since_unix_s=NOW_UNIX_S - 60,
            spec_digest=spec_digest(one.spec),
            memory_bytes=one.memory_bytes,
            failure=one.failure,
            report=report,
            stats=self.build.stats(),
        )
        return state


class FakeFleet:
    """Links between the neurons: an engine has its stages while all of them are there."""

    def __init__(self, *neurons: FakeNeuron) -> None:
        self.neurons = {one.name: one for one in neurons}

    def living(self) -> Iterator[FakeNeuron]:
        return (one for one in self.neurons.values() if one.is_alive)

    def deliver(self, tasks: list[tuple[str, list[Any], dict[str, Any]]]) -> None:
        """Messages to neurons that are away are lost."""
        by_queue = {keys.neuron_queue(name): one for name, one in self.neurons.items()}
        for task, arguments, options in tasks:
            neuron = by_queue[options["queue"]]
            if neuron.is_alive:
                neuron.take(task, arguments)

    def work(self) -> None:
        """Stages listen, engines join theirs, and what has lost its other half ends."""
        for neuron in self.living():
            neuron.work()
        for neuron in self.living():
            for replica in list(neuron.replicas.values()):
                self._follow(neuron, replica)
        for neuron in self.living():
            neuron.stages = [one for one in neuron.stages if not self._is_orphan(one)]

    def _follow(self, neuron: FakeNeuron, replica: FakeReplica) -> None:
        far = [self._end_of(replica.spec, index) for index in self._far(replica.spec)]
        if replica.status is ReplicaStatus.LOADING:
            if neuron.free_bytes < 0:
                self._fail(replica, "does_not_fit", "the engine has no room")
            elif all(one is not None and one.status is LISTENING for one in far):
                for one in far:
                    assert one is not None
                    one.status = READY
                replica.status = ReplicaStatus.READY
            else:
                self._fail(replica, "device_fault", "a stage is gone")
        elif replica.status is ReplicaStatus.READY and not all(
            one is not None and one.status is READY for one in far
        ):
            del neuron.replicas[replica.spec.model]

    def _fail(self, replica: FakeReplica, code: str, message: str) -> None:
        replica.status = ReplicaStatus.FAILED
        replica.failure = LoadFailure(code=code, message=message)

    def _far(self, spec: LoadSpec) -> list[int]:
        return [index for index, stage in enumerate(spec.stages) if stage.neuron]

    def _end_of(self, spec: LoadSpec, index: int) -> FakeStage | None:
        """The stage at that address that proves itself by the certificate of the engine's load,
        and accepts the engine's."""
        wanted = spec.stages[index]
        assert wanted.certificate and wanted.address and spec.link_identity is not None
        neuron = self.neurons[wanted.neuron]
        for one in neuron.stages if neuron.is_alive else []:
            of, identity = one.spec.stage_of, one.spec.link_identity
            assert of is not None and identity is not None
            if (
                one.address == wanted.address
                and identity.certificate == wanted.certificate
                and of.engine_certificate == spec.link_identity.certificate
            ):
                return one
        return None

    def _is_orphan(self, one: FakeStage) -> bool:
        """It had an engine, which is gone."""
        if one.status is not READY:
            return False
        of = one.spec.stage_of
        assert of is not None
        engine = self.neurons[of.engine_neuron]
        replica = engine.replicas.get(one.spec.model) if engine.is_alive else None
        if replica is None or replica.status is not ReplicaStatus.READY:
            return True
        return self._end_of(replica.spec, of.index) is not one


NAMES = ("a", "b", "c")
GB = 40
"""The model, which no neuron of 24 GiB holds, and any two do."""


class World:
    """The three neurons, and a control that ticks."""

    def __init__(self, build: Any, sent: Any) -> None:
        self.fleet = FakeFleet(*(FakeNeuron(name, build, 24 * GIB) for name in NAMES))
        self.sent = sent
        self.specs: list[tuple[str, LoadSpec]] = []
        """Each load that was sent, with its neuron's queue."""
        LoadJob.objects.all().delete()
        Neuron.objects.all().delete()
        CatalogueModel.objects.all().delete()
        selectors.catalogue_cache_clear()
        self.sent.tasks.clear()
        services.catalogue_model_create(
            actor=COMMAND, name="large", source="huggingface:org/large", spread="fleet"
        )
        layer_costs_record(model=CatalogueModel.objects.get(), costs=packed(dense(GB)))
        selectors.catalogue_cache_clear()

    def snapshot(self) -> FleetSnapshot:
        return build_snapshot([one.heartbeat() for one in self.fleet.living()])

    def tick(self, *, works: bool = True) -> None:
        """A second: neurons work and report, the control records and decides, messages arrive."""
        if works:
            self.fleet.work()
        beats = [one.heartbeat() for one in self.fleet.living()]
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
        tasks, self.sent.tasks = self.sent.tasks, []
        for task, arguments, options in tasks:
            if task == "neuron.load_model":
                self.specs.append((options["queue"], msgspec.convert(arguments[0], LoadSpec)))
        self.fleet.deliver(tasks)

    def request(self) -> Any:
        """What a gateway does for a request."""
        entry = selectors.catalogue_find("large")
        assert entry is not None
        decision = place(entry, self.snapshot(), catalogue=selectors.catalogue_by_name())
        if hasattr(decision, "stages"):
            placed_load_start(actor=GATEWAY, load=decision)
        return decision

    def serving(self) -> str | None:
        decision = self.request()
        return decision.neuron if isinstance(decision, Route) else None

    def held(self) -> dict[str, int]:
        return {one.name: one.total_bytes - one.free_bytes for one in self.fleet.living()}

    def load(self) -> str:
        """Loads the model. Returns its engine's neuron."""
        self.tick()
        for _ in range(6):
            if (neuron := self.serving()) is not None:
                return neuron
            self.tick()
        raise AssertionError(list(LoadJob.objects.values("status", "failure_message")))

    def settle(self) -> None:
        for _ in range(4):
            self.tick()
