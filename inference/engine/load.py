"""From a ``LoadSpec`` to an engine that answers, and the report of what was loaded.

Opens the files with ``inference.loading``, builds the model, tries it out (what its largest steps
take, how fast prompts go), sizes the KV blocks and warms up. Knows no sockets and no neurons.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil
import torch

from inference.engine.build import build_engine
from inference.engine.context_limit import PrefillBound
from inference.engine.embedding_engine import EmbeddingEngine
from inference.engine.embedding_load import embedding_report, load_embedding_engine
from inference.engine.engine import Engine
from inference.engine.grammars import GrammarCompiler
from inference.engine.kv_cache import DEFAULT_BLOCK_TOKENS
from inference.engine.memory import (
    KVPlan,
    cpu_kv_share,
    free_cuda_bytes,
    plan_kv,
)
from inference.engine.memory_use import HostGauge, gauge_for, give_back_freed
from inference.engine.quality import quality_in_words
from inference.engine.rates import PrefillAverage
from inference.engine.scheduler import SchedulerLimits
from inference.engine.trial_steps import measure_prefill, run_largest_steps
from inference.engine.warmup import warm_up
from inference.loading.devices import earlier_loads_on, free_memory_bytes
from inference.loading.embedding_files import OpenedEmbeddingModel
from inference.loading.loader import PREFILL_TOKENS_PER_STEP, OpenedModel, open_model
from inference.models.native.llama import NativeLlama
from inference.models.registry import AnyModel, build_fastest_model
from inference.protocol.load import LoadProgress, LoadReport, LoadSpec, LoadStage
from inference.protocol.prefill_speed import PrefillSpeed

STEP_S = 0.1
"""Half of what a disconnect may take to free its blocks."""

ReportProgress = Callable[[LoadProgress], None]


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    engine: Engine | EmbeddingEngine
    report: LoadReport


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """What a built model turned out to be on its device."""

    load_bytes: int
    """All but KV."""
    process_bytes: int
    prefill_speed: PrefillSpeed
    """As measured now."""
    bound: PrefillBound


def load_engine(
    spec: LoadSpec,
    data_dir: Path,
    on_progress: ReportProgress,
    *,
    check_when_idle: bool = False,
) -> LoadedEngine:
    """Blocks for as long as it takes, downloads included. Raises ``LoadError``, ``EngineError``,
    ``ModelError``."""
    started_s, host_gauge = time.monotonic(), HostGauge()

    def on_tensor(progress: LoadProgress) -> None:
        give_back_freed()
        on_progress(progress)

    opened = open_model(spec, data_dir / "models", on_tensor)
    if isinstance(opened, OpenedEmbeddingModel):
        embedding_engine, embedder = load_embedding_engine(spec, opened, on_progress)
        report = embedding_report(opened, embedder, time.monotonic() - started_s)
        return LoadedEngine(embedding_engine, _with_memory(report, spec, opened, host_gauge))
    limit = min(opened.config.max_positions, spec.max_context_tokens or opened.config.max_positions)
    grammars = GrammarCompiler(
        opened.tokenizer_dir / "tokenizer.json",
        opened.config.vocab_size,
        tuple(opened.config.eos_token_ids),
    )
    try:
        model, execution = build_fastest_model(
            opened.config, opened.weights, limit, data_dir / "cache" / "native"
        )
        quality = quality_in_words(
            opened,
            model,
            execution,
            context_tokens=limit,
            cache_dir=data_dir / "cache" / "quality",
            on_progress=on_progress,
        )
    finally:
        opened.close()
    if isinstance(model, NativeLlama):
        # Its threads are its own; torch's, left over from sampling, would spin on their cores.
        torch.set_num_threads(1)
    scheduler_limits = SchedulerLimits(
        max_running=spec.max_concurrent_sequences,
        max_queue_depth=spec.max_queue_depth,
        max_queue_wait_s=spec.max_queue_wait_s,
        prefill_tokens_per_step=PREFILL_TOKENS_PER_STEP[model.device.type],
        target_step_s=STEP_S,
    )
    # Its tables are among what the load takes, so they are waited for before that is measured.
    grammar_problem = grammars.wait_ready()
    on_progress(LoadProgress(stage=LoadStage.WARMUP, unit="steps", detail="measuring"))
    trial = _try_out(spec, model, scheduler_limits, host_gauge, opened.num_parameters)
    plan = _plan(spec, model, trial)
    engine = build_engine(
        model,
        context_tokens=plan.context_tokens,
        num_kv_blocks=plan.num_blocks,
        kv_dtype=model.kv_dtype,
        scheduler_limits=scheduler_limits,
        grammars=grammars,
        prefill_average=PrefillAverage(trial.bound.speed),
        check_when_idle=check_when_idle,
    )
    warm_up(engine, opened.config.vocab_size, on_progress)
    seconds = time.monotonic() - started_s
    report = _report(opened, model, plan, trial, execution, quality, seconds, grammar_problem)
    return LoadedEngine(engine, report)


def _with_memory(
    report: LoadReport, spec: LoadSpec, opened: OpenedEmbeddingModel, host_gauge: HostGauge
) -> LoadReport:
    """An embedding model has run its steps by now, and has no KV."""
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


def configure_threads() -> int:
    """torch's threads: HELEXA_ENGINE_THREADS, else one per physical core this process may use."""
    word = os.environ.get("HELEXA_ENGINE_THREADS", "").strip()
    physical = psutil.cpu_count(logical=False) or 1
    num_threads = int(word) if word else min(physical, len(os.sched_getaffinity(0)))
    torch.set_num_threads(num_threads)
    return num_threads


def _try_out(
    spec: LoadSpec,
    model: AnyModel,
    limits: SchedulerLimits,
    host_gauge: HostGauge,
    num_parameters: int,
) -> _Trial:
    gauge = gauge_for(model.device, host_gauge)
    gauge.watch()
    trial_kv_bytes = run_largest_steps(model, limits, num_parameters)
    load_bytes = gauge.used_bytes() - trial_kv_bytes
    longest = model.config.max_positions
    context_tokens = min(longest, spec.max_context_tokens or longest)
    measured = measure_prefill(model, limits, context_tokens)
    earlier = earlier_loads_on(spec, model.device)
    average = None if earlier is None else earlier.prefill_speed
    return _Trial(
        load_bytes=load_bytes,
        process_bytes=gauge.process_bytes,
        prefill_speed=measured,
        bound=PrefillBound(
            speed=average or measured,
            max_prefill_s=spec.max_prefill_s,
            is_average=average is not None,
        ),
    )


def _plan(spec: LoadSpec, model: AnyModel, trial: _Trial) -> KVPlan:
    if spec.kv_memory_bytes is not None:
        budget_bytes = spec.kv_memory_bytes
    elif model.device.type == "cuda":
        held_bytes = torch.cuda.memory_allocated(model.device)
        budget_bytes = free_cuda_bytes(model.device, trial.load_bytes - held_bytes)
    else:
        budget_bytes = int(free_memory_bytes(model.device) * cpu_kv_share())
    return plan_kv(
        model.config,
        budget_bytes=budget_bytes,
        block_tokens=DEFAULT_BLOCK_TOKENS,
        dtype=model.kv_dtype,
        max_context_tokens=spec.max_context_tokens,
        max_sequences=spec.max_concurrent_sequences,
        prefill=trial.bound,
    )


def _report(
    opened: OpenedModel,
    model: AnyModel,
    plan: KVPlan,
    trial: _Trial,
    execution: str,
    quality: str,
    load_seconds: float,
    grammar_problem: str | None,
) -> LoadReport:
    config = opened.config
    estimated_bytes = opened.estimated_load_bytes
    return LoadReport(
        architecture=config.architecture,
        device=str(model.device),
        dtype=str(model.dtype).removeprefix("torch."),
        num_parameters=opened.num_parameters,
        weight_bytes=opened.weight_bytes,
        kv_bytes=plan.kv_bytes,
        num_kv_blocks=plan.num_blocks,
        kv_block_tokens=DEFAULT_BLOCK_TOKENS,
        context_tokens=plan.context_tokens,
        vocab_size=config.vocab_size,
        quantization=opened.weights.report(),
        quality=quality,
        compiled=execution,
        load_seconds=load_seconds,
        tokenizer_dir=str(opened.tokenizer_dir),
        eos_token_ids=list(config.eos_token_ids),
        generation_defaults=dict(config.generation_defaults),
        grammar_problem=grammar_problem,
        context_reason=plan.context_reason,
        prefill_speed=trial.prefill_speed,
        estimated_bytes=estimated_bytes + plan.kv_bytes,
        actual_bytes=trial.load_bytes + plan.kv_bytes,
        process_bytes=trial.process_bytes,
        memory_correction_bytes=opened.need.correction_bytes + trial.load_bytes - estimated_bytes,
    )
