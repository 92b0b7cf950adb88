"""The model of a load, built from opened files and tried out: its memory and its speed are
measured. Keys and values are allocated afterwards from the memory that is left.

Decides too which drafts it gets. A draft model is compared with the answering one before either is
built.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import torch

from inference.engine.divided.built_stages import build_stages, later_gauges, stages_in_words
from inference.engine.divided.ranked_model import RankedModel, lead_ranks
from inference.engine.divided.stage_processes import StageProcesses
from inference.engine.divided.stage_specs import spec_of_stage
from inference.engine.divided.staged_model import StagedModel
from inference.engine.drawing import Drawer, choose_drawer
from inference.engine.grammars import GrammarCompiler
from inference.engine.kv_cache import DEFAULT_BLOCK_TOKENS
from inference.engine.load.build import first_concurrencies
from inference.engine.load.kv_memory import SHORTEST_USEFUL_CONTEXT, positions_of_part
from inference.engine.load.memory_use import HostGauge
from inference.engine.load.quality import quality_in_words
from inference.engine.load.trial import TRIAL_STEPS, Trial, report_step, run_largest_steps, try_out
from inference.engine.speculation.prompt_lookup import LookupSpeculator
from inference.engine.speculation.speculator import (
    DEFAULT_DRAFT_TOKENS,
    MOST_DRAFT_TOKENS,
    Speculator,
)
from inference.engine.waiting_queue import SchedulerLimits
from inference.loading.checked_config import MOST_POSITIONS
from inference.loading.described import (
    check_draft_config,
    check_shared_vocabulary,
    takes_draft_model,
)
from inference.loading.devices import wanted_kv_format
from inference.loading.embedding_loader import OpenedEmbeddingModel
from inference.loading.loader import OpenedModel, open_model
from inference.loading.preflight import PREFILL_TOKENS_PER_STEP
from inference.loading.progress import OnProgress
from inference.models.backend import AnyModel, Predictor
from inference.models.config import ModelConfig
from inference.models.errors import UnsupportedKVError, UnsupportedModuleError
from inference.models.kv_format import kv_bytes_per_block
from inference.models.registry import build_fastest_model, build_predictor
from inference.protocol.load import LoadSpec, draft_spec
from inference.protocol.load_errors import BadSourceError, UnknownArchitectureError

NO_PREDICTOR = "the model's files bring no layer of multi-token prediction that is known"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltDraftModel:
    model: AnyModel
    num_positions: int
    weight_bytes: int
    estimated_load_bytes: int

    @property
    def block_bytes(self) -> int:
        return kv_bytes_per_block(self.model.config, DEFAULT_BLOCK_TOKENS, self.model.kv_format)


@dataclass(frozen=True, slots=True)
class BuiltModel:
    spec: LoadSpec
    weight_bytes: int
    model: AnyModel
    execution: str
    """A sentence for people: which code computes, and why not a faster one."""
    drawer: Drawer
    drawing: str
    limits: SchedulerLimits
    trial: Trial
    quality: str
    draft: BuiltDraftModel | None
    predictor: Predictor | None
    num_positions: int | None
    """The most tokens of a text that it was built for, where memory allowed no more."""

    @property
    def ranked(self) -> RankedModel | None:
        return self.model if isinstance(self.model, RankedModel) else None

    @property
    def staged(self) -> StagedModel | None:
        return self.model if isinstance(self.model, StagedModel) else None

    @property
    def draft_block_bytes(self) -> int:
        if self.predictor is not None:
            return self.predictor.block_bytes(DEFAULT_BLOCK_TOKENS)
        return 0 if self.draft is None else self.draft.block_bytes


def build_model(
    spec: LoadSpec,
    opened: OpenedModel,
    drafting: OpenedModel | None,
    cache_dir: Path,
    on_progress: OnProgress,
    grammars: GrammarCompiler,
    host_gauge: HostGauge,
    later_stages: StageProcesses | None = None,
) -> BuiltModel:
    """Raises ``LoadError``, ``EngineError``, ``ModelError``."""
    wanted = min(opened.config.max_positions, spec.max_context_tokens or MOST_POSITIONS)
    context_tokens = min(wanted, _most_positions(spec, opened, later_stages))
    model, execution = _choose_model(
        spec, opened, later_stages, context_tokens, cache_dir / "native"
    )
    predictor = None
    if opened.config.has_predictor:
        predictor = build_predictor(model, opened.weights)
    draft = None
    if drafting is not None:
        draft = build_draft_model(spec, drafting, context_tokens, cache_dir / "native")
    drawer, drawing = choose_drawer(model)
    # Its tables are among what the load takes, so they are waited for before that is measured.
    grammars.wait_ready()

    def measured(done: int) -> None:
        total = TRIAL_STEPS + len(first_concurrencies(model))
        report_step(on_progress, done, total, "measuring")

    measured(0)
    limits = SchedulerLimits.of(spec, PREFILL_TOKENS_PER_STEP[model.device.type])
    if draft is not None and drafting is not None:
        run_largest_steps(draft.model, limits, draft.num_positions, drafting.num_parameters)
    gauges = later_gauges(model) if isinstance(model, StagedModel) else ()
    trial = try_out(
        spec,
        model,
        drawer,
        limits,
        host_gauge,
        opened.num_parameters,
        context_tokens,
        gauges,
        on_step=measured,
    )
    # After the trial: a load that measures quality, as only the first does, takes no more by it.
    quality = quality_in_words(
        opened,
        model,
        execution,
        context_tokens=context_tokens,
        cache_dir=cache_dir / "quality",
        on_progress=on_progress,
    )
    if model.has_own_threads:  # torch's, left over from sampling, would spin on their cores
        torch.set_num_threads(1)
    return BuiltModel(
        spec=spec,
        weight_bytes=opened.weight_bytes,
        model=model,
        execution=execution,
        drawer=drawer,
        drawing=drawing,
        limits=limits,
        trial=trial,
        quality=quality,
        draft=draft,
        predictor=predictor,
        num_positions=context_tokens if context_tokens < wanted else None,
    )


def _most_positions(spec: LoadSpec, first: OpenedModel, others: StageProcesses | None) -> int:
    found = [positions_of_part(spec_of_stage(spec, 0), first)]
    found += [] if others is None else [one.num_positions for one in others.opened]
    least, scaling = SHORTEST_USEFUL_CONTEXT, first.config.rope_scaling
    if scaling is not None and scaling.kind == "longrope":
        # Which divisors hold is decided by the context that the model declares.
        least = max(least, scaling.original_max_positions + 1)
    return max(min(found), least)


def _choose_model(
    spec: LoadSpec,
    opened: OpenedModel,
    later_stages: StageProcesses | None,
    context_tokens: int,
    native_cache_dir: Path,
) -> tuple[AnyModel, str]:
    """The path is certain only now: an unexpected one may lack the KV format."""
    kv_format = wanted_kv_format(spec)
    try:
        if opened.shares:
            return lead_ranks(spec, opened, context_tokens, kv_format)
        if later_stages is not None:
            staged = build_stages(spec, opened, later_stages, context_tokens, native_cache_dir)
            return staged, stages_in_words(staged)
        return build_fastest_model(
            opened.config, opened.weights, context_tokens, native_cache_dir, kv_format
        )
    except UnsupportedKVError as error:
        raise BadSourceError(str(error)) from None
    except UnsupportedModuleError as error:
        raise UnknownArchitectureError(str(error)) from error


def drafts_problem(spec: LoadSpec, config: ModelConfig) -> str:
    if spec.speculation == "draft_model" and not takes_draft_model(config):
        return "blocks that this model's sliding window has passed are not there to be drafted from"
    if spec.speculation == "mtp" and not config.has_predictor:
        return NO_PREDICTOR
    return ""


def num_draft_tokens(spec: LoadSpec) -> int:
    return min(spec.max_draft_tokens or DEFAULT_DRAFT_TOKENS, MOST_DRAFT_TOKENS)


def choose_speculator(spec: LoadSpec) -> Speculator | None:
    """Those that need a model, and the choice among them, are made with the engine."""
    if spec.speculation not in ("prompt_lookup", "auto"):
        return None
    return LookupSpeculator(num_draft_tokens(spec))


def speculation_in_words(spec: LoadSpec, config: ModelConfig, draft_weight_bytes: int = 0) -> str:
    if spec.speculation == "off":
        return ""
    if problem := drafts_problem(spec, config):
        return f"none: {problem}"
    origin = "prompt lookup"
    if spec.speculation == "draft_model":
        origin = f"draft model {spec.draft_model} ({draft_weight_bytes / 1e6:,.1f} MB)"
    if spec.speculation == "mtp":
        origin = "multi-token prediction"
    limit = f"up to {num_draft_tokens(spec)} tokens a step"
    if spec.speculation == "auto":
        return _automatic_in_words(spec, config, limit)
    return f"{origin}, {limit}"


def _automatic_in_words(spec: LoadSpec, config: ModelConfig, limit: str) -> str:
    if config.has_predictor:
        return f"auto: prompt lookup or multi-token prediction, whichever pays, {limit}"
    is_whole = spec.tensor_parallel == 1 and not spec.stages
    problem = NO_PREDICTOR if is_whole else "a divided model has no multi-token prediction"
    return f"auto: prompt lookup where it pays, {limit}; {problem}"


def open_draft_model(
    spec: LoadSpec,
    answering: OpenedModel,
    cache_dir: Path,
    on_progress: OnProgress,
) -> OpenedModel | None:
    """``None``: no drafts from a model. Reads no weights. Raises ``LoadError``."""
    drafting = draft_spec(spec)
    if drafting is None or drafts_problem(spec, answering.config):
        return None
    promised_bytes = spec.promised_bytes + answering.need.required_bytes
    drafting = msgspec.structs.replace(drafting, promised_bytes=promised_bytes)
    opened = open_model(drafting, cache_dir, on_progress)
    if isinstance(opened, OpenedEmbeddingModel):
        raise BadSourceError(f"the draft model {drafting.source} makes embeddings, not texts")
    try:
        check_draft_config(opened.config, drafting.source)
        check_shared_vocabulary(answering.tokenizer_dir, opened.tokenizer_dir, drafting.source)
    except Exception:
        opened.close()
        raise
    return replace(opened, config=replace(opened.config, vision=None))


def build_draft_model(
    spec: LoadSpec, opened: OpenedModel, context_tokens: int, native_cache_dir: Path
) -> BuiltDraftModel:
    num_positions = min(context_tokens, opened.config.max_positions)
    model, _ = build_fastest_model(
        opened.config, opened.weights, num_positions, native_cache_dir, wanted_kv_format(spec)
    )
    return BuiltDraftModel(
        model=model,
        num_positions=num_positions,
        weight_bytes=opened.weight_bytes,
        estimated_load_bytes=opened.estimated_load_bytes,
    )
