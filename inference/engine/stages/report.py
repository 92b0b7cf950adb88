"""The part of a load report about a model of several stages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from inference.engine.cache.kv_cache import DEFAULT_BLOCK_TOKENS
from inference.engine.load.kv_memory import KVPlan
from inference.engine.load.trial import Trial
from inference.engine.stages.built_stages import BuiltStages
from inference.engine.stages.messages import SettleStage
from inference.models.backend import AnyDevice, RemoteDevice, name_of
from inference.models.cache.kv_format import cache_layout, kv_bytes_per_block
from inference.models.stages.layer_range import stage_config
from inference.protocol.load_report import DeviceMemory, LoadReport, StageReport


def with_stages(
    report: LoadReport,
    built: BuiltStages,
    trial: Trial,
    plan: KVPlan,
    *,
    left_out: str,
    predicted_tokens_per_s: float | None,
) -> LoadReport:
    """``report`` with each stage, and what each device of this host holds of them. ``left_out``: in
    words, what of the files the model does not compute with."""
    stages = stage_reports(built, plan)
    memory = _memory_by_device(stages, built, trial)
    own = [memory[device] for device in memory if not isinstance(device, RemoteDevice)]
    beside_bytes = report.actual_bytes - sum(one.actual_bytes for one in memory.values())
    own[0] = msgspec.structs.replace(own[0], actual_bytes=own[0].actual_bytes + beside_bytes)
    later_bytes = sum(stage.estimated_bytes for stage in stages[1:] if not stage.neuron)
    remote_kv_bytes = sum(stage.kv_bytes for stage in stages if stage.neuron)
    return msgspec.structs.replace(
        report,
        quantization=_quantization(built, left_out),
        estimated_bytes=report.estimated_bytes + later_bytes - remote_kv_bytes,
        actual_bytes=sum(one.actual_bytes for one in own),
        process_bytes=sum(one.process_bytes for one in own),
        stages=stages,
        stage_memory=own,
        predicted_tokens_per_s=predicted_tokens_per_s,
        device=", ".join(one.device for one in own),
        memory_correction_bytes=0,
    )


def settle_stages(built: BuiltStages, trial: Trial, plan: KVPlan) -> None:
    """Reports to each stage of another host what it takes there. What several stages take of one
    device is the first one's of them, so that its neuron counts it once."""
    stages = stage_reports(built, plan)
    memory = _memory_by_device(stages, built, trial)
    settled = {}
    for index, (fact, report) in enumerate(zip(built.stages, stages, strict=True)):
        if not isinstance(fact.device, RemoteDevice):
            continue
        nothing = DeviceMemory(device=report.device, actual_bytes=0, process_bytes=0)
        own = memory.pop(fact.device, nothing)
        settled[index] = SettleStage(report=report, memory=own)
    built.model.processes.settle(settled)


def _memory_by_device(
    stages: Sequence[StageReport], built: BuiltStages, trial: Trial
) -> dict[AnyDevice, DeviceMemory]:
    """What the stages of each device take of it together, the engine's first."""
    kv_bytes: Counter[AnyDevice] = Counter()
    for fact, stage in zip(built.stages, stages, strict=True):
        kv_bytes[fact.device] += stage.kv_bytes
    return {
        one.device: DeviceMemory(
            device=name_of(one.device),
            actual_bytes=one.load_bytes + kv_bytes[one.device],
            process_bytes=one.process_bytes,
        )
        for one in trial.devices
    }


def _quantization(built: BuiltStages, left_out: str) -> str:
    """Describes each stage's quantization, then what of the files the model does not compute
    with."""
    words = [f"layers {one.layers}: {one.weights}" for one in built.stages]
    return "; ".join(filter(None, [*words, left_out]))


def stage_reports(built: BuiltStages, plan: KVPlan) -> list[StageReport]:
    found = []
    for one in built.stages:
        config = stage_config(built.model.config, one.layers)
        block_bytes = kv_bytes_per_block(config, DEFAULT_BLOCK_TOKENS, one.kv_format)
        state_bytes = cache_layout(config).state_bytes_per_slot
        found.append(
            StageReport(
                device=name_of(one.device),
                layers=(one.layers.first, one.layers.last),
                execution=one.execution,
                estimated_bytes=one.estimated_bytes,
                kv_bytes=plan.num_blocks * block_bytes + plan.states.num_slots * state_bytes,
                neuron=one.spec.neuron,
            )
        )
    return found
