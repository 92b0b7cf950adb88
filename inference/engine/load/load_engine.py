"""Loads an engine from a ``LoadSpec`` and makes its load report. Knows no sockets and no
neurons."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import psutil
import torch

from inference.engine.adapters import Adapters
from inference.engine.divided.built_stages import (
    later_stages,
    open_later,
    weights_in_words,
    with_stages,
)
from inference.engine.divided.children import Children
from inference.engine.divided.ranked_model import with_ranks
from inference.engine.divided.stage_specs import (
    check_divided,
    check_undivided,
    spec_of_stage,
    stage_progress,
)
from inference.engine.embedding_engine import EmbeddingEngine
from inference.engine.embedding_load import embedding_report, load_embedding_engine
from inference.engine.engine import Engine
from inference.engine.grammars import GrammarCompiler
from inference.engine.kv_cache import DEFAULT_BLOCK_TOKENS
from inference.engine.load.build import (
    AWAKENING_CONCURRENCY,
    AdapterLoader,
    build_engine,
    first_concurrencies,
    open_prefix_files,
    prefix_fingerprint,
    warm_up,
)
from inference.engine.load.built_model import (
    BuiltModel,
    build_model,
    choose_speculator,
    num_draft_tokens,
    open_draft_model,
    speculation_in_words,
)
from inference.engine.load.kv_budget import asleep_at_most, kv_plan
from inference.engine.load.kv_memory import KVPlan
from inference.engine.load.memory_use import HostGauge
from inference.engine.load.sleeper import Sleeper, Sleeps
from inference.engine.load.trial import with_memory
from inference.engine.step import PrefillAverage
from inference.garbage import release_freed_memory
from inference.loading.embedding_loader import OpenedEmbeddingModel
from inference.loading.host import triton_problem
from inference.loading.image_processor import ImageFileProcessor, open_image_processor, vision_input
from inference.loading.loader import OpenedModel, open_model
from inference.loading.progress import OnProgress, after_each_tensor
from inference.loading.tokenizer_files import tokenizer_warnings
from inference.protocol.load import LoadSpec
from inference.protocol.load_report import LoadReport
from inference.settings.neuron import ENGINE_THREADS


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    engine: Engine | EmbeddingEngine
    report: LoadReport
    children: Children | None = None
    sleeper: Sleeper | None = None


def load_engine(
    spec: LoadSpec,
    data_dir: Path,
    on_progress: OnProgress,
    *,
    check_when_idle: bool = False,
) -> LoadedEngine:
    """Blocks, downloads included. Raises ``LoadError``, ``EngineError``, ``ModelError``."""
    host_gauge = HostGauge()
    check_divided(spec)
    started_s, on_tensor = time.monotonic(), after_each_tensor(on_progress)
    with later_stages(spec) as later, ExitStack() as files:
        opened = open_model(
            spec_of_stage(spec, 0), data_dir / "models", stage_progress(spec, 0, on_tensor)
        )
        if isinstance(opened, OpenedEmbeddingModel):
            check_undivided(spec)
            embedding_engine, embedder = load_embedding_engine(spec, opened, on_progress)
            report = embedding_report(opened, embedder, time.monotonic() - started_s)
            return LoadedEngine(embedding_engine, with_memory(report, spec, opened, host_gauge))
        processor, no_images = open_image_processor(opened.directory, opened.config)
        if no_images:
            opened = _as_text_model(opened, no_images)
        grammars = GrammarCompiler(
            opened.tokenizer_dir / "tokenizer.json",
            opened.config.vocab_size,
            tuple(opened.config.eos_token_ids),
        )
        files.callback(opened.close)
        open_later(spec, opened, later, data_dir / "cache" / "native", on_tensor)
        drafting = open_draft_model(spec, opened, data_dir / "models", on_tensor)
        if drafting is not None:
            files.callback(drafting.close)
        built = build_model(
            spec, opened, drafting, data_dir / "cache", on_progress, grammars, host_gauge, later
        )
        files.close()
        plan = kv_plan(built)
        # Before there are blocks: they hold nothing while the model sleeps.
        sleeping = asleep_at_most(built)
        build = _engine_builder(
            opened, built, plan, grammars, data_dir, processor, on_progress, check_when_idle
        )
        engine = build(first_concurrencies(built.model))
        seconds = time.monotonic() - started_s
        report = _report(opened, built, plan, seconds, grammars.wait_ready())
        grammars.forget_tokenizer()
        release_freed_memory()
        if built.ranked is not None:
            return LoadedEngine(engine, report, built.ranked.followers)
        report = msgspec.structs.replace(report, asleep=sleeping)
        sleeper = _sleeper(built, lambda: build(AWAKENING_CONCURRENCY))
        return LoadedEngine(engine, report, later, sleeper)


def _engine_builder(
    opened: OpenedModel,
    built: BuiltModel,
    plan: KVPlan,
    grammars: GrammarCompiler,
    data_dir: Path,
    processor: ImageFileProcessor | None,
    on_progress: OnProgress,
    check_when_idle: bool,
) -> Callable[[Sequence[int]], Engine]:
    """What it returns refers to no weights but the model's own."""
    spec, draft, vocab_size = built.spec, built.draft, opened.config.vocab_size
    loader = AdapterLoader(built.model, data_dir / "models") if built.ranked is None else None
    fingerprint = prefix_fingerprint(opened, built.model, built.execution)
    prefill_average = PrefillAverage(built.trial.bound.speed)

    def build(concurrencies: Sequence[int]) -> Engine:
        engine = build_engine(
            built.model,
            context_tokens=plan.context_tokens,
            num_kv_blocks=plan.num_blocks,
            kept_kv_blocks=plan.kept_blocks,
            num_state_slots=plan.states.num_slots,
            drawer=built.drawer,
            scheduler_limits=replace(built.limits, max_running=plan.states.max_sequences),
            grammars=grammars,
            adapters=Adapters(loader, spec.adapter_slots),
            image_processor=processor,
            prefix_files=open_prefix_files(spec, data_dir),
            prefix_fingerprint=fingerprint,
            prefill_average=prefill_average,
            run_ahead=None if built.ranked is None else False,
            staged=built.staged,
            speculator=choose_speculator(spec),
            draft_model=None if draft is None else draft.model,
            draft_positions=None if draft is None else draft.num_positions,
            draft_tokens=num_draft_tokens(spec),
            predictor=built.predictor,
            check_when_idle=check_when_idle,
        )
        warm_up(engine, vocab_size, on_progress, concurrencies)
        return engine

    return build


def _sleeper(built: BuiltModel, build: Callable[[], Engine]) -> Sleeper:
    staged, draft = built.staged, built.draft
    if staged is not None:
        first = staged.first
        others = staged.processes
        own_bytes = built.trial.process_bytes - sum(one.process_bytes for one in others.built)
        return Sleeper([first], build, process_bytes=own_bytes, others=others)
    models: list[Sleeps] = [built.model]
    models += [] if draft is None else [draft.model]
    models += [] if built.predictor is None else [built.predictor]
    captures = [built.model] if draft is None else [built.model, draft.model]
    return Sleeper(models, build, process_bytes=built.trial.process_bytes, captures=captures)


def _as_text_model(opened: OpenedModel, reason: str) -> OpenedModel:
    words = "; ".join(filter(None, [opened.left_out, reason]))
    return replace(opened, config=replace(opened.config, vision=None), left_out=words)


def load_warnings(device: torch.device) -> list[str]:
    problem = triton_problem() if device.type == "cuda" else None
    return [] if problem is None else [problem]


def sampling_warnings(unused_defaults: Sequence[str]) -> list[str]:
    return [
        f"the model's files recommend {default}, and no sampler here computes that: answers are "
        "sampled without it"
        for default in unused_defaults
    ]


def _report(
    opened: OpenedModel,
    built: BuiltModel,
    plan: KVPlan,
    load_seconds: float,
    grammar_problem: str | None,
) -> LoadReport:
    spec, config, trial, staged = built.spec, opened.config, built.trial, built.staged
    estimated_bytes, draft_weight_bytes = opened.estimated_load_bytes, 0
    if built.draft is not None:
        estimated_bytes += built.draft.estimated_load_bytes
        draft_weight_bytes = built.draft.weight_bytes
    weights = [opened.weights.report()] if staged is None else weights_in_words(staged)
    beside_bytes = plan.cache_bytes + plan.adapter_bytes + config.kept_rows_bytes
    report = LoadReport(
        architecture=config.architecture,
        device=str(built.model.device),
        dtype=str(built.model.dtype).removeprefix("torch."),
        num_parameters=opened.num_parameters,
        weight_bytes=opened.weight_bytes + draft_weight_bytes,
        kv_bytes=plan.cache_bytes,
        num_kv_blocks=plan.num_blocks,
        kv_block_tokens=DEFAULT_BLOCK_TOKENS,
        kv_dtype=built.model.kv_format,
        context_tokens=plan.context_tokens,
        vocab_size=config.vocab_size,
        quantization="; ".join(filter(None, [*weights, opened.left_out])),
        quality=built.quality,
        compiled=", ".join(
            filter(None, [built.execution, built.model.capture_in_words, built.drawing])
        ),
        load_seconds=load_seconds,
        tokenizer_dir=str(opened.tokenizer_dir),
        eos_token_ids=list(config.eos_token_ids),
        generation_defaults=dict(config.generation_defaults),
        grammar_problem=grammar_problem,
        warnings=[
            *load_warnings(built.model.device),
            *tokenizer_warnings(opened.tokenizer_dir),
            *sampling_warnings(config.unused_defaults),
        ],
        vision=vision_input(config),
        context_reason=plan.context_reason,
        prefill_speed=trial.prefill_speed,
        estimated_bytes=estimated_bytes + beside_bytes,
        actual_bytes=trial.load_bytes + beside_bytes,
        adapter_bytes=plan.adapter_bytes,
        process_bytes=trial.process_bytes,
        memory_correction_bytes=opened.need.correction_bytes + trial.load_bytes - estimated_bytes,
        speculation=speculation_in_words(spec, config, draft_weight_bytes),
        takes_predictions=choose_speculator(spec) is not None,
        predicted_tokens_per_s=None if staged is None else spec.predicted_tokens_per_s,
    )
    if built.ranked is not None:
        return with_ranks(report, built.ranked, plan.cache_bytes)
    if staged is not None:
        return with_stages(report, staged, trial, plan)
    return report


def configure_threads() -> int:
    physical = psutil.cpu_count(logical=False) or 1
    num_threads = ENGINE_THREADS.read(os.environ) or min(physical, len(os.sched_getaffinity(0)))
    torch.set_num_threads(num_threads)
    return num_threads
