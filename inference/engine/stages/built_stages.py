"""Builds a model of several stages, and groups them by device: what they take there they take
together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec
import torch

from inference.engine.load.memory_use import MemoryGauge
from inference.engine.stages.stage_processes import StageProcesses
from inference.engine.stages.staged_model import LaterStage, StagedModel
from inference.loading.devices import wanted_kv_format
from inference.loading.loader import OpenedModel
from inference.loading.weights.part_files import stage_ranges
from inference.models.backend import AnyDevice, RemoteDevice
from inference.models.cache.kv_format import KVFormat
from inference.models.config import ModelConfig
from inference.models.stages.build import as_first_stage, build_stage
from inference.models.stages.layer_range import LayerRange, stage_config
from inference.protocol.load import (
    LoadSpec,
    StageSpec,
)


@dataclass(frozen=True, slots=True)
class StageFacts:
    """One stage, whichever process computes it."""

    spec: StageSpec
    """The spec with the memory that its neuron promised to others, and its limit there."""
    layers: LayerRange
    device: AnyDevice
    kv_format: KVFormat
    execution: str
    """A sentence for people: which code computes it."""
    weights: str
    """A sentence for people: how the weights are held."""
    weight_bytes: int
    estimated_bytes: int
    """The bytes without keys and values."""


@dataclass(frozen=True, slots=True)
class DevicePart:
    """All stages of one device."""

    device: AnyDevice
    specs: tuple[StageSpec, ...]
    config: ModelConfig
    """The config of the device's layers together."""
    kv_format: KVFormat
    weight_bytes: int
    """The bytes of its weights, as estimated from the files."""
    has_head: bool
    processes: tuple[int, ...]
    """Indices of those that have processes of their own, among those that do."""


@dataclass(frozen=True, slots=True)
class StageGauge:
    """``MemoryGauge`` of a stage's process."""

    processes: StageProcesses
    index: int

    @property
    def process_bytes(self) -> int:
        return self.processes.built[self.index].process_bytes

    def watch(self) -> None:
        self.processes.watch_memory(self.index)

    def used_bytes(self) -> int:
        return self.processes.memory(self.index).used_bytes


@dataclass(frozen=True, slots=True)
class BuiltStages:
    model: StagedModel
    stages: tuple[StageFacts, ...]

    @property
    def in_words(self) -> str:
        """The stages described for the load report."""
        parts = (f"layers {one.layers} on {one.device}: {one.execution}" for one in self.stages)
        return f"{len(self.stages)} stages: {'; '.join(parts)}"

    @property
    def later_gauges(self) -> Sequence[tuple[AnyDevice, MemoryGauge]]:
        """The device and memory gauge of each stage that has a process of its own."""
        processes = self.model.processes
        return [
            (one.device, StageGauge(processes, index)) for index, one in enumerate(self.stages[1:])
        ]

    def parts(self) -> Iterator[DevicePart]:
        """One for each device, the first stage's before the others."""
        for device in dict.fromkeys(one.device for one in self.stages):
            here = [index for index, one in enumerate(self.stages) if one.device == device]
            stages = [self.stages[index] for index in here]
            yield DevicePart(
                device=device,
                specs=tuple(one.spec for one in stages),
                config=stage_config(self.model.config, *(one.layers for one in stages)),
                kv_format=stages[0].kv_format,
                weight_bytes=sum(one.weight_bytes for one in stages),
                has_head=0 in here,
                processes=tuple(index - 1 for index in here if index),
            )


def build_stages(
    spec: LoadSpec,
    first: OpenedModel,
    processes: StageProcesses,
    context_tokens: int,
    native_cache_dir: Path,
) -> BuiltStages:
    """All stages at once, each in its process. Raises what ``build_stage`` does, and what a load of
    another process raises."""
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
    facts = [
        StageFacts(
            spec=spec.stages[0],
            layers=ranges[0],
            device=stage.device,
            kv_format=stage.kv_format,
            execution=words,
            weights=first.weights.report(),
            weight_bytes=first.need.weight_bytes,
            estimated_bytes=first.estimated_load_bytes,
        )
    ]
    others = zip(spec.stages[1:], ranges[1:], processes.opened, processes.built, strict=True)
    for own, layers, opened, built in others:
        device = torch.device(opened.device)
        facts.append(
            StageFacts(
                spec=msgspec.structs.replace(
                    own,
                    promised_bytes=opened.promised_bytes if own.neuron else own.promised_bytes,
                    memory_limit_bytes=opened.memory_limit_bytes,
                ),
                layers=layers,
                device=RemoteDevice(own.neuron, device) if own.neuron else device,
                kv_format=cast(KVFormat, built.kv_format),
                execution=built.execution,
                weights=built.weights,
                weight_bytes=opened.weight_bytes,
                estimated_bytes=built.estimated_bytes,
            )
        )
    later = [
        LaterStage(
            config=stage_config(config, one.layers),
            device=one.device,
            kv_format=one.kv_format,
            copies_context=built.copies_context,
        )
        for one, built in zip(facts[1:], processes.built, strict=True)
    ]
    model = StagedModel(config, as_first_stage(stage), later, ranges, processes)
    return BuiltStages(model=model, stages=tuple(facts))
