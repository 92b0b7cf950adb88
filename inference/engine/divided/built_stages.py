"""Opens, builds and reports the stages of a load, and groups them by device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from inference.engine.divided.ranked_model import follower_spec
from inference.engine.divided.stage_messages import JoinStage, MeetStage, SettleStage
from inference.engine.divided.stage_processes import StageProcesses
from inference.engine.divided.stage_runner import built_message
from inference.engine.divided.stage_specs import (
    files_digest,
    spec_of_stage,
    stage_behind,
    stage_peer,
    stage_progress,
    threads_of_stage,
)
from inference.engine.divided.staged_model import StagedModel, StageFacts
from inference.engine.kv_cache import DEFAULT_BLOCK_TOKENS
from inference.engine.load.kv_memory import KVPlan
from inference.engine.load.memory_use import MemoryGauge
from inference.engine.load.trial import Trial
from inference.loading.devices import choose_device, wanted_kv_format
from inference.loading.loader import OpenedModel
from inference.loading.progress import OnProgress
from inference.loading.weights.part_files import stage_ranges
from inference.models.backend import AnyDevice, RemoteDevice, name_of
from inference.models.config import ModelConfig
from inference.models.kv_format import KVFormat, cache_layout, kv_bytes_per_block
from inference.models.splits import stage_config
from inference.models.stage import as_first_stage, build_stage
from inference.protocol.load import LoadSpec
from inference.protocol.load_report import DeviceMemory, LoadReport, StageReport


@contextmanager
def later_stages(spec: LoadSpec) -> Iterator[StageProcesses | None]:
    """``None`` for one stage. They end where the block raises. Raises ``StageUnreachableError``."""
    if len(spec.stages) < 2:
        yield None
        return
    processes = StageProcesses(spec)
    try:
        yield processes
    except BaseException:
        processes.close()
        raise


def open_later(
    spec: LoadSpec,
    first: OpenedModel,
    processes: StageProcesses | None,
    native_cache_dir: Path,
    on_progress: OnProgress,
) -> None:
    """Reads no weights. Raises ``LoadError`` and ``DeviceFault``."""
    if processes is None:
        return
    num_threads = torch.get_num_threads()
    torch.set_num_threads(threads_of_stage(num_threads, spec, 0))
    processes.start(first.config.hidden_size)
    digest = files_digest(first) if any(stage.neuron for stage in spec.stages) else ""
    for stage in range(1, len(spec.stages)):
        report = stage_progress(spec, stage, on_progress)
        if spec.stages[stage].neuron:
            address_behind = stage_behind(spec, stage).address
            meet = MeetStage(files_digest=digest, address_behind=address_behind)
            processes.open(meet, report)
            continue
        own = spec_of_stage(follower_spec(spec, first), stage)
        own = msgspec.structs.replace(
            own,
            promised_bytes=own.promised_bytes + _taken_bytes(own, first, processes),
            link_identity=None,
        )
        join = JoinStage(
            spec=own,
            stage=stage,
            cache_dir=str(first.cache_dir),
            native_cache_dir=str(native_cache_dir),
            num_threads=threads_of_stage(num_threads, spec, stage),
            before=stage_peer(spec, spec.stages[stage - 1]),
            behind=stage_peer(spec, stage_behind(spec, stage)),
        )
        processes.open(join, report)


def _taken_bytes(spec: LoadSpec, first: OpenedModel, others: StageProcesses) -> int:
    device = choose_device(spec)
    taken_bytes = first.need.required_bytes if first.weights.device == device else 0
    here = zip(spec.stages[1:], others.opened, strict=False)  # as many as are open
    return taken_bytes + sum(
        one.required_bytes
        for stage, one in here
        if not stage.neuron and torch.device(one.device) == device
    )


def build_stages(
    spec: LoadSpec,
    first: OpenedModel,
    processes: StageProcesses,
    context_tokens: int,
    native_cache_dir: Path,
) -> StagedModel:
    """Raises what ``build_stage`` does, and what a load of another process raises."""
    processes.begin_build(context_tokens, has_images=first.config.vision is not None)
    config, ranges = first.config, stage_ranges(spec)
    stage, words = build_stage(
        config,
        ranges[0],
        first.weights,
        context_tokens,
        native_cache_dir,
        wanted_kv_format(spec),
    )
    processes.wait_built()
    own = built_message(stage, words, first, process_bytes=0)
    facts = [StageFacts(spec.stages[0], ranges[0], stage.device, first.need.weight_bytes, own)]
    others = zip(spec.stages[1:], ranges[1:], processes.opened, processes.built, strict=True)
    for one, layers, opened, built in others:
        changes = {"memory_limit_bytes": opened.memory_limit_bytes}
        if one.neuron:
            changes["promised_bytes"] = opened.promised_bytes
        local = torch.device(opened.device)
        device = RemoteDevice(one.neuron, local) if one.neuron else local
        own_spec = msgspec.structs.replace(one, **changes)
        facts.append(StageFacts(own_spec, layers, device, opened.weight_bytes, built))
    return StagedModel(config, as_first_stage(stage), facts, processes)


@dataclass(frozen=True, slots=True)
class DevicePart:
    device: AnyDevice
    promised_bytes: int
    limit_bytes: int | None
    config: ModelConfig
    kv_format: KVFormat
    weight_bytes: int
    has_head: bool
    processes: tuple[int, ...]
    """The indices of its stages into ``StageProcesses.all``; the first stage has none."""


@dataclass(frozen=True, slots=True)
class StageGauge:
    processes: StageProcesses
    index: int

    @property
    def process_bytes(self) -> int:
        return self.processes.built[self.index].process_bytes

    def watch(self) -> None:
        self.processes.watch_memory(self.index)

    def used_bytes(self) -> int:
        return self.processes.memory(self.index).used_bytes


def stages_in_words(model: StagedModel) -> str:
    parts = (f"layers {one.layers} on {one.device}: {one.built.execution}" for one in model.stages)
    return f"{model.num_stages} stages: {'; '.join(parts)}"


def weights_in_words(model: StagedModel) -> list[str]:
    return [f"layers {one.layers}: {one.built.weights}" for one in model.stages]


def later_gauges(model: StagedModel) -> list[tuple[AnyDevice, MemoryGauge]]:
    return [
        (one.device, StageGauge(model.processes, index))
        for index, one in enumerate(model.stages[1:])
    ]


def device_parts(model: StagedModel) -> Iterator[DevicePart]:
    for device in dict.fromkeys(one.device for one in model.stages):
        here = [index for index, one in enumerate(model.stages) if one.device == device]
        stages = [model.stages[index] for index in here]
        limits = [one.spec.memory_limit_bytes for one in stages]
        yield DevicePart(
            device=device,
            promised_bytes=max(one.spec.promised_bytes for one in stages),
            limit_bytes=min((limit for limit in limits if limit is not None), default=None),
            config=stage_config(model.config, *(one.layers for one in stages)),
            kv_format=stages[0].built.kv_format,
            weight_bytes=sum(one.weight_bytes for one in stages),
            has_head=0 in here,
            processes=tuple(index - 1 for index in here if index),
        )


def with_stages(
    report: LoadReport,
    model: StagedModel,
    trial: Trial,
    plan: KVPlan,
) -> LoadReport:
    """Sends the stages of other hosts their parts. Memory of several stages on a device is the
    first one's, so its neuron counts it once."""
    stages = stage_reports(model, plan)
    memory = _memory_by_device(stages, model, trial)
    beside_bytes = report.actual_bytes - sum(one.actual_bytes for one in memory.values())
    settled = {}
    for index, (fact, stage) in enumerate(zip(model.stages, stages, strict=True)):
        if isinstance(fact.device, RemoteDevice):
            nothing = DeviceMemory(device=stage.device, actual_bytes=0, process_bytes=0)
            settled[index] = SettleStage(report=stage, memory=memory.pop(fact.device, nothing))
    model.processes.settle(settled)
    own = list(memory.values())
    own[0] = msgspec.structs.replace(own[0], actual_bytes=own[0].actual_bytes + beside_bytes)
    later_bytes = sum(stage.estimated_bytes for stage in stages[1:] if not stage.neuron)
    remote_kv_bytes = sum(stage.kv_bytes for stage in stages if stage.neuron)
    return msgspec.structs.replace(
        report,
        estimated_bytes=report.estimated_bytes + later_bytes - remote_kv_bytes,
        actual_bytes=sum(one.actual_bytes for one in own),
        process_bytes=sum(one.process_bytes for one in own),
        stages=stages,
        stage_memory=own,
        device=", ".join(one.device for one in own),
        memory_correction_bytes=0,
    )


def _memory_by_device(
    stages: Sequence[StageReport], model: StagedModel, trial: Trial
) -> dict[AnyDevice, DeviceMemory]:
    kv_bytes: Counter[AnyDevice] = Counter()
    for fact, stage in zip(model.stages, stages, strict=True):
        kv_bytes[fact.device] += stage.kv_bytes
    return {
        one.device: DeviceMemory(
            device=name_of(one.device),
            actual_bytes=one.load_bytes + kv_bytes[one.device],
            process_bytes=one.process_bytes,
        )
        for one in trial.devices
    }


def stage_reports(model: StagedModel, plan: KVPlan) -> list[StageReport]:
    found = []
    for one in model.stages:
        config = stage_config(model.config, one.layers)
        block_bytes = kv_bytes_per_block(config, DEFAULT_BLOCK_TOKENS, one.built.kv_format)
        state_bytes = cache_layout(config).state_bytes_per_slot
        found.append(
            StageReport(
                device=name_of(one.device),
                layers=(one.layers.first, one.layers.last),
                execution=one.built.execution,
                estimated_bytes=one.built.estimated_bytes,
                kv_bytes=plan.num_blocks * block_bytes + plan.states.num_slots * state_bytes,
                neuron=one.spec.neuron,
            )
        )
    return found
