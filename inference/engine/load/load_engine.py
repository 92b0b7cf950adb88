"""From a ``LoadSpec`` to an engine that answers, and the report of what was loaded.

Opens the files with ``inference.loading``, builds the model, tries it out (what its largest steps
take, how fast prompts go), sizes the KV blocks and warms up. Knows no sockets and no neurons.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import psutil
import torch

from inference.engine.adapters import Adapters
from inference.engine.embedding.embedding_engine import EmbeddingEngine
from inference.engine.embedding.embedding_load import embedding_report, load_embedding_engine
from inference.engine.engine import Engine
from inference.engine.kv_cache import DEFAULT_BLOCK_TOKENS
from inference.engine.load.adapter_loader import AdapterLoader
from inference.engine.load.build import build_engine
from inference.engine.load.draft import DraftModel, build_draft_model, open_draft_model
from inference.engine.load.memory import (
    KVPlan,
    cpu_kv_share,
    free_cuda_bytes,
    kept_host_bytes,
    plan_kv,
    within_limit,
)
from inference.engine.load.memory_use import HostGauge, give_back_freed
from inference.engine.load.prefix_files import open_prefix_files, prefix_fingerprint
from inference.engine.load.quality import quality_in_words
from inference.engine.load.sleeper import Sleeper, asleep_bytes
from inference.engine.load.speculation import (
    choose_speculator,
    num_draft_tokens,
    speculation_in_words,
)
from inference.engine.load.trial import Trial, try_out, with_memory
from inference.engine.load.trial_steps import run_largest_steps
from inference.engine.load.warmup import AWAKENING_CONCURRENCY, WARMUP_CONCURRENCY, warm_up
from inference.engine.ranks.followers import Followers
from inference.engine.ranks.lead import check_ranks, lead_ranks, rank_budget_bytes, with_ranks
from inference.engine.ranks.ranked_model import RankedModel
from inference.engine.sampling.drawer_choice import choose_drawer
from inference.engine.sampling.drawing import Drawer
from inference.engine.sampling.grammars import GrammarCompiler
from inference.engine.scheduling.rates import PrefillAverage
from inference.engine.scheduling.scheduler import SchedulerLimits
from inference.loading.devices import free_memory_bytes, ranks_on_one_device
from inference.loading.embedding_files import OpenedEmbeddingModel
from inference.loading.errors import BadSourceError, UnknownArchitectureError
from inference.loading.image_processor import open_image_processor, vision_input
from inference.loading.kv_choice import wanted_kv_format
from inference.loading.loader import PREFILL_TOKENS_PER_STEP, OpenedModel, open_model
from inference.models.decoder import DecoderModel
from inference.models.errors import UnsupportedKVError, UnsupportedModuleError
from inference.models.graphed import GraphedDecoder, captured_in_words
from inference.models.native.llama import NativeLlama
from inference.models.predictor import Predictor
from inference.models.registry import AnyModel, build_fastest_model
from inference.models.vision_config import kept_rows_bytes
from inference.protocol.load import LoadProgress, LoadReport, LoadSpec, LoadStage

STEP_S = 0.1
"""Half of what a disconnect may take to free its blocks."""

ReportProgress = Callable[[LoadProgress], None]


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    engine: Engine | EmbeddingEngine
    report: LoadReport
    followers: Followers | None = None
    """Of a model that several ranks share."""
    sleeper: Sleeper | None = None
    """``None``: what was loaded cannot sleep."""


@dataclass(frozen=True, slots=True)
class _Built:
    model: AnyModel
    execution: str
    """In words: which code computes, and why not a faster one."""
    drawer: Drawer
    drawing: str
    """In words: which code draws, where there was a choice."""
    limits: SchedulerLimits
    trial: Trial
    quality: str
    """In words: what quantising cost."""
    draft: DraftModel | None
    """Among what the trial measured."""
    predictor: Predictor | None

    @property
    def draft_block_bytes(self) -> int:
        """Of keys and values in each block that only drafts need."""
        if self.predictor is not None:
            return self.predictor.block_bytes(DEFAULT_BLOCK_TOKENS)
        return 0 if self.draft is None else self.draft.block_bytes


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
    check_ranks(spec)

    def on_tensor(progress: LoadProgress) -> None:
        give_back_freed()
        on_progress(progress)

    opened = open_model(spec, data_dir / "models", on_tensor)
    if isinstance(opened, OpenedEmbeddingModel):
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
    drafting: OpenedModel | None = None
    try:
        drafting = open_draft_model(spec, opened, data_dir / "models", on_tensor)
        built = _build(
            spec, opened, drafting, data_dir / "cache", on_progress, grammars, host_gauge
        )
    finally:
        opened.close()
        if drafting is not None:
            drafting.close()
    plan = _plan(spec, opened, built)
    draft = built.draft
    ranked = built.model if isinstance(built.model, RankedModel) else None
    loader = AdapterLoader(built.model, data_dir / "models") if ranked is None else None
    fingerprint = prefix_fingerprint(opened, built.model, built.execution)
    prefill_average = PrefillAverage(built.trial.bound.speed)
    asleep = asleep_bytes(built.model, built.trial.process_bytes, built.trial.load_bytes)
    config = opened.config

    def build(concurrencies: Sequence[int] = WARMUP_CONCURRENCY) -> Engine:
        """Also after each sleep: it holds the models, and of the files nothing."""
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
            run_ahead=None if ranked is None else False,
            speculator=choose_speculator(spec, config),
            draft_model=None if draft is None else draft.model,
            draft_positions=None if draft is None else draft.num_positions,
            draft_tokens=num_draft_tokens(spec),
            predictor=built.predictor,
            check_when_idle=check_when_idle,
        )
        warm_up(engine, config.vocab_size, on_progress, concurrencies)
        return engine

    engine = build()
    seconds = time.monotonic() - started_s
    report = _report(opened, built, plan, seconds, grammars.wait_ready())
    report = with_ranks(report, built.model, plan.cache_bytes)
    draft_weight_bytes = 0 if draft is None else draft.weight_bytes
    report = msgspec.structs.replace(
        report,
        speculation=speculation_in_words(spec, config, draft_weight_bytes),
        takes_predictions=choose_speculator(spec, config) is not None,
    )
    if ranked is not None:
        return LoadedEngine(engine, report, ranked.followers)
    models = (built.model,) if draft is None else (built.model, draft.model)
    sleeper = Sleeper(models, lambda: build(AWAKENING_CONCURRENCY), beside=built.predictor)
    report = msgspec.structs.replace(report, asleep=asleep)
    return LoadedEngine(engine, report, sleeper=sleeper)


def _as_text_model(opened: OpenedModel, reason: str) -> OpenedModel:
    """Whose tower is not built, so that what is faster for texts can run it."""
    words = "; ".join(filter(None, [opened.left_out, reason]))
    return replace(opened, config=replace(opened.config, vision=None), left_out=words)


def configure_threads() -> int:
    """torch's threads: HELEXA_ENGINE_THREADS, else one per physical core this process may use."""
    word = os.environ.get("HELEXA_ENGINE_THREADS", "").strip()
    physical = psutil.cpu_count(logical=False) or 1
    num_threads = int(word) if word else min(physical, len(os.sched_getaffinity(0)))
    torch.set_num_threads(num_threads)
    return num_threads


def _build(
    spec: LoadSpec,
    opened: OpenedModel,
    drafting: OpenedModel | None,
    cache_dir: Path,
    on_progress: ReportProgress,
    grammars: GrammarCompiler,
    host_gauge: HostGauge,
) -> _Built:
    longest = opened.config.max_positions
    context_tokens = min(longest, spec.max_context_tokens or longest)
    model, execution = _fastest_model(spec, opened, context_tokens, cache_dir / "native")
    predictor = None
    if opened.config.has_predictor:
        assert isinstance(model, DecoderModel), "on CUDA hybrids are not captured"
        predictor = Predictor(model, opened.weights)
    draft = None
    if drafting is not None:
        draft = build_draft_model(spec, drafting, context_tokens, cache_dir / "native")
    drawer, drawing = choose_drawer(model)
    # Its tables are among what the load takes, so they are waited for before that is measured.
    grammars.wait_ready()
    on_progress(LoadProgress(stage=LoadStage.WARMUP, unit="steps", detail="measuring"))
    limits = _scheduler_limits(spec, model)
    if draft is not None and drafting is not None:
        run_largest_steps(draft.model, limits, draft.num_positions, drafting.num_parameters)
    trial = try_out(spec, model, drawer, limits, host_gauge, opened.num_parameters)
    # After the trial: a load that measures quality, as only the first does, takes no more by it.
    quality = quality_in_words(
        opened,
        model,
        execution,
        context_tokens=context_tokens,
        cache_dir=cache_dir / "quality",
        on_progress=on_progress,
    )
    if isinstance(model, NativeLlama):
        # Its threads are its own; torch's, left over from sampling, would spin on their cores.
        torch.set_num_threads(1)
    return _Built(model, execution, drawer, drawing, limits, trial, quality, draft, predictor)


def _fastest_model(
    spec: LoadSpec, opened: OpenedModel, context_tokens: int, native_cache_dir: Path
) -> tuple[AnyModel, str]:
    """Which path runs is certain only now: one that was not foreseen may not have the KV format."""
    try:
        if opened.shares:
            return lead_ranks(spec, opened, context_tokens, wanted_kv_format(spec))
        return build_fastest_model(
            opened.config, opened.weights, context_tokens, native_cache_dir, wanted_kv_format(spec)
        )
    except UnsupportedKVError as error:
        raise BadSourceError(str(error)) from None
    except UnsupportedModuleError as error:
        raise UnknownArchitectureError(str(error)) from error


def _scheduler_limits(spec: LoadSpec, model: AnyModel) -> SchedulerLimits:
    return SchedulerLimits(
        max_running=spec.max_concurrent_sequences,
        max_queue_depth=spec.max_queue_depth,
        max_queue_wait_s=spec.max_queue_wait_s,
        prefill_tokens_per_step=PREFILL_TOKENS_PER_STEP[model.device.type],
        target_step_s=STEP_S,
    )


def _plan(spec: LoadSpec, opened: OpenedModel, built: _Built) -> KVPlan:
    model = built.model
    is_asked = spec.kv_memory_bytes is not None
    is_cpu = model.device.type != "cuda"
    return plan_kv(
        model.config,
        budget_bytes=_kv_budget_bytes(spec, built),
        block_tokens=DEFAULT_BLOCK_TOKENS,
        kv_format=model.kv_format,
        max_context_tokens=spec.max_context_tokens,
        max_sequences=spec.max_concurrent_sequences,
        prefill=built.trial.bound,
        kept_bytes=kept_host_bytes(opened.weight_bytes) if is_cpu and not is_asked else None,
        leaves_room=not is_cpu and not is_asked,
        draft_block_bytes=built.draft_block_bytes,
    )


def _kv_budget_bytes(spec: LoadSpec, built: _Built) -> int:
    """Measured now, less what other models were promised and what this one may not take."""
    if spec.kv_memory_bytes is not None:
        return spec.kv_memory_bytes // spec.tensor_parallel
    model, trial = built.model, built.trial
    moment_bytes, num_here = 0, ranks_on_one_device(spec, model.device)
    if model.device.type == "cuda":
        held_bytes = torch.cuda.memory_allocated(model.device)
        moment_bytes = trial.load_bytes - held_bytes
        if isinstance(model, GraphedDecoder):
            moment_bytes += model.captured_bytes(spec.max_concurrent_sequences)
        if built.draft is not None:
            moment_bytes += built.draft.captured_bytes(spec.max_concurrent_sequences)
        free_bytes = free_cuda_bytes(model.device, moment_bytes)
        budget_bytes = max(0, free_bytes - spec.promised_bytes - kept_rows_bytes(model.config))
    else:
        taken_bytes = spec.promised_bytes + kept_rows_bytes(model.config)
        free_bytes = max(0, free_memory_bytes(model.device) - taken_bytes)
        budget_bytes = int(free_bytes * cpu_kv_share())
    budget_bytes = rank_budget_bytes(model, spec, budget_bytes, moment_bytes)
    limit_bytes = spec.memory_limit_bytes
    return within_limit(
        budget_bytes,
        None if limit_bytes is None else limit_bytes // num_here,
        trial.process_bytes + trial.load_bytes + kept_rows_bytes(model.config),
    )


def _report(
    opened: OpenedModel,
    built: _Built,
    plan: KVPlan,
    load_seconds: float,
    grammar_problem: str | None,
) -> LoadReport:
    config, trial = opened.config, built.trial
    draft = built.draft
    estimated_bytes = opened.estimated_load_bytes
    estimated_bytes += 0 if draft is None else draft.estimated_load_bytes
    execution = captured_in_words(built.model, built.execution)
    return LoadReport(
        architecture=config.architecture,
        device=str(built.model.device),
        dtype=str(built.model.dtype).removeprefix("torch."),
        num_parameters=opened.num_parameters,
        weight_bytes=opened.weight_bytes + (0 if draft is None else draft.weight_bytes),
        kv_bytes=plan.cache_bytes,
        num_kv_blocks=plan.num_blocks,
        kv_block_tokens=DEFAULT_BLOCK_TOKENS,
        kv_dtype=built.model.kv_format,
        context_tokens=plan.context_tokens,
        vocab_size=config.vocab_size,
        quantization="; ".join(filter(None, [opened.weights.report(), opened.left_out])),
        quality=built.quality,
        compiled=", ".join(filter(None, [execution, built.drawing])),
        load_seconds=load_seconds,
        tokenizer_dir=str(opened.tokenizer_dir),
        eos_token_ids=list(config.eos_token_ids),
        generation_defaults=dict(config.generation_defaults),
        grammar_problem=grammar_problem,
        vision=vision_input(config),
        context_reason=plan.context_reason,
        prefill_speed=trial.prefill_speed,
        estimated_bytes=estimated_bytes + plan.cache_bytes + kept_rows_bytes(config),
        actual_bytes=trial.load_bytes + plan.cache_bytes + kept_rows_bytes(config),
        process_bytes=trial.process_bytes,
        memory_correction_bytes=opened.need.correction_bytes + trial.load_bytes - estimated_bytes,
    )
