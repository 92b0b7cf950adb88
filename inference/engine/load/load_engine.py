"""From a ``LoadSpec`` to an engine that answers, and the report of what was loaded.

Opens the files with ``inference.loading``, builds the model, tries it out (what its largest steps
take, how fast prompts go), sizes the KV blocks and warms up. Knows no sockets and no neurons.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import psutil
import torch

from inference.engine.adapters import Adapters
from inference.engine.embedding.embedding_engine import EmbeddingEngine
from inference.engine.embedding.embedding_load import embedding_report, load_embedding_engine
from inference.engine.engine import Engine
from inference.engine.load.adapter_loader import AdapterLoader
from inference.engine.load.build import build_engine
from inference.engine.load.built_model import build_model
from inference.engine.load.draft_opening import open_draft_model
from inference.engine.load.load_report import load_report
from inference.engine.load.memory.kv_budget import kv_plan
from inference.engine.load.memory.memory_use import HostGauge, give_back_freed
from inference.engine.load.prefix_folder import open_prefix_files, prefix_fingerprint
from inference.engine.load.sleeper import Sleeper, asleep_bytes
from inference.engine.load.speculation import (
    choose_speculator,
    num_draft_tokens,
    speculation_in_words,
)
from inference.engine.load.trial.trial import with_memory
from inference.engine.load.trial.warmup import AWAKENING_CONCURRENCY, WARMUP_CONCURRENCY, warm_up
from inference.engine.ranks.followers import Followers
from inference.engine.ranks.lead import check_ranks, with_ranks
from inference.engine.sampling.grammars import GrammarCompiler
from inference.engine.scheduling.rates import PrefillAverage
from inference.loading.embedding.embedding_files import OpenedEmbeddingModel
from inference.loading.image_processor import open_image_processor
from inference.loading.loader import OpenedModel, open_model
from inference.loading.progress import OnProgress
from inference.protocol.load import LoadProgress, LoadReport, LoadSpec
from inference.settings.neuron import ENGINE_THREADS


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    engine: Engine | EmbeddingEngine
    report: LoadReport
    followers: Followers | None = None
    """The other ranks' processes, where several share the model."""
    sleeper: Sleeper | None = None
    """``None``: what was loaded cannot sleep."""


def load_engine(
    spec: LoadSpec,
    data_dir: Path,
    on_progress: OnProgress,
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
        built = build_model(
            spec, opened, drafting, data_dir / "cache", on_progress, grammars, host_gauge
        )
    finally:
        opened.close()
        if drafting is not None:
            drafting.close()
    plan = kv_plan(spec, opened, built)
    draft = built.draft
    ranked = built.ranked
    loader = AdapterLoader(built.model, data_dir / "models") if ranked is None else None
    fingerprint = prefix_fingerprint(opened, built.model, built.execution)
    prefill_average = PrefillAverage(built.trial.bound.speed)
    asleep = asleep_bytes(built.model, built.trial.process_bytes, built.trial.load_bytes)
    config = opened.config

    def build(concurrencies: Sequence[int] = WARMUP_CONCURRENCY) -> Engine:
        """Builds the engine, after the load and after each sleep. It holds the models and nothing
        of the files."""
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
    report = load_report(opened, built, plan, seconds, grammars.wait_ready())
    if ranked is not None:
        report = with_ranks(report, ranked, plan.cache_bytes)
    draft_weight_bytes = 0 if draft is None else draft.weight_bytes
    report = msgspec.structs.replace(
        report,
        speculation=speculation_in_words(spec, config, draft_weight_bytes),
        takes_predictions=choose_speculator(spec, config) is not None,
    )
    if ranked is not None:
        return LoadedEngine(engine, report, ranked.followers)
    models = (built.model,) if draft is None else (built.model, draft.model)
    sleeper = Sleeper(
        models,
        lambda: build(AWAKENING_CONCURRENCY),
        process_bytes=built.trial.process_bytes,
        beside=built.predictor,
    )
    report = msgspec.structs.replace(report, asleep=asleep)
    return LoadedEngine(engine, report, sleeper=sleeper)


def _as_text_model(opened: OpenedModel, reason: str) -> OpenedModel:
    """Whose tower is not built, so that what is faster for texts can run it."""
    words = "; ".join(filter(None, [opened.left_out, reason]))
    return replace(opened, config=replace(opened.config, vision=None), left_out=words)


def configure_threads() -> int:
    """torch's threads: HELEXA_ENGINE_THREADS, else one per physical core this process may use."""
    physical = psutil.cpu_count(logical=False) or 1
    num_threads = ENGINE_THREADS.read(os.environ) or min(physical, len(os.sched_getaffinity(0)))
    torch.set_num_threads(num_threads)
    return num_threads
