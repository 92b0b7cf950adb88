"""Measures a freshly built model on its device, beside the estimate: its memory and its prefill
speed. Knows no engine and no requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import msgspec

from inference.engine.cache.kv_cache import DEFAULT_BLOCK_TOKENS
from inference.engine.load.kv_memory import PrefillBound
from inference.engine.load.memory_use import HostGauge, MemoryGauge, gauge_for
from inference.engine.load.trial_steps import (
    measure_prefill,
    run_largest_image,
    run_largest_sampling,
    run_largest_steps,
)
from inference.engine.sampling.drawing import Drawer
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from inference.loading.devices import earlier_loads_on
from inference.loading.embedding.embedding_loader import OpenedEmbeddingModel
from inference.models.backend import AnyDevice, AnyModel
from inference.models.step_input import NUM_LONE_STATES
from inference.protocol.load import LoadSpec, PrefillSpeed
from inference.protocol.load_report import LoadReport

TRIAL_STEPS = 3
"""The largest steps, the largest sampling and prompts; a load's progress counts them."""


@dataclass(frozen=True, slots=True)
class DeviceTrial:
    device: AnyDevice
    load_bytes: int
    """All but KV."""
    process_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    devices: tuple[DeviceTrial, ...]
    """The model's, the one where it samples first."""
    prefill_speed: PrefillSpeed
    bound: PrefillBound

    @property
    def load_bytes(self) -> int:
        return sum(one.load_bytes for one in self.devices)

    @property
    def process_bytes(self) -> int:
        return sum(one.process_bytes for one in self.devices)


def try_out(
    spec: LoadSpec,
    model: AnyModel,
    drawer: Drawer,
    limits: SchedulerLimits,
    host_gauge: HostGauge,
    num_parameters: int,
    context_tokens: int,
    others: Sequence[tuple[AnyDevice, MemoryGauge]] = (),
    on_step: Callable[[int], None] = lambda done: None,
) -> Trial:
    """``host_gauge`` was opened before anything was loaded. ``context_tokens``: what the model was
    built for. ``others``: gauges of other processes that compute parts of it. ``on_step`` gets how
    many of ``TRIAL_STEPS`` are done."""
    gauges: dict[AnyDevice, list[MemoryGauge]] = {
        model.device: [gauge_for(model.device, host_gauge)]
    }
    for device, gauge in others:
        gauges.setdefault(device, []).append(gauge)
    for gauge in chain(*gauges.values()):
        gauge.watch()
    run_largest_image(model)
    num_blocks = run_largest_steps(model, limits, context_tokens, num_parameters)
    on_step(1)
    run_largest_sampling(model, drawer, limits)
    on_step(2)
    trial_kv_bytes = model.cache_bytes(num_blocks, DEFAULT_BLOCK_TOKENS, NUM_LONE_STATES)
    devices = tuple(
        DeviceTrial(
            device,
            sum(gauge.used_bytes() for gauge in here) - trial_kv_bytes[device],
            sum(gauge.process_bytes for gauge in here),
        )
        for device, here in gauges.items()
    )
    measured = measure_prefill(model, limits, context_tokens)
    earlier = earlier_loads_on(spec, model.device)
    average = None if earlier is None else earlier.prefill_speed
    return Trial(
        devices=devices,
        prefill_speed=measured,
        bound=PrefillBound(
            speed=average or measured,
            max_prefill_s=spec.max_prefill_s,
            is_average=average is not None,
        ),
    )


def with_memory(
    report: LoadReport, spec: LoadSpec, opened: OpenedEmbeddingModel, host_gauge: HostGauge
) -> LoadReport:
    """The report with the bytes that the load took. An embedding model has run its steps by now,
    and has no KV."""
    gauge = gauge_for(opened.device, host_gauge)
    earlier = earlier_loads_on(spec, opened.device)
    correction_bytes = earlier.memory_correction_bytes if earlier else 0
    actual_bytes = gauge.used_bytes()
    return msgspec.structs.replace(
        report,
        estimated_bytes=opened.weight_bytes + correction_bytes,
        actual_bytes=actual_bytes,
        process_bytes=gauge.process_bytes,
        memory_correction_bytes=actual_bytes - opened.weight_bytes,
    )
