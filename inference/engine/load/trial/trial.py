"""What a freshly built model turns out to be on its device, beside what was expected: the memory it
took, and how fast its prompts go. Knows no engine and no requests."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from inference.engine.load.memory.context_limit import PrefillBound
from inference.engine.load.memory.memory_use import HostGauge, gauge_for
from inference.engine.load.trial.trial_pictures import run_largest_picture
from inference.engine.load.trial.trial_sampling import run_largest_sampling
from inference.engine.load.trial.trial_steps import measure_prefill, run_largest_steps
from inference.engine.sampling.drawing import Drawer
from inference.engine.scheduling.limits import SchedulerLimits
from inference.loading.devices import earlier_loads_on
from inference.loading.embedding.embedding_files import OpenedEmbeddingModel
from inference.models.backend import AnyModel
from inference.protocol.load import LoadReport, LoadSpec
from inference.protocol.prefill_speed import PrefillSpeed


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    load_bytes: int
    """All but KV."""
    process_bytes: int
    prefill_speed: PrefillSpeed
    """As measured now."""
    bound: PrefillBound


def try_out(
    spec: LoadSpec,
    model: AnyModel,
    drawer: Drawer,
    limits: SchedulerLimits,
    host_gauge: HostGauge,
    num_parameters: int,
    context_tokens: int,
) -> Trial:
    """``host_gauge`` was opened before anything was loaded. ``context_tokens``: what the model was
    built for."""
    gauge = gauge_for(model.device, host_gauge)
    gauge.watch()
    run_largest_picture(model)
    trial_kv_bytes = run_largest_steps(model, limits, context_tokens, num_parameters)
    run_largest_sampling(model, drawer, limits)
    load_bytes = gauge.used_bytes() - trial_kv_bytes
    measured = measure_prefill(model, limits, context_tokens)
    earlier = earlier_loads_on(spec, model.device)
    average = None if earlier is None else earlier.prefill_speed
    return Trial(
        load_bytes=load_bytes,
        process_bytes=gauge.process_bytes,
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
    """The report with what the load took. An embedding model has run its steps by now, and has no
    KV."""
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
