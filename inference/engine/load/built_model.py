"""The model of a load, built from opened files and tried out: what runs, what it takes, how fast it
is. Keys and values come after it, in what is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from inference.engine.cache.kv_cache import DEFAULT_BLOCK_TOKENS
from inference.engine.load.draft_opening import BuiltDraftModel, build_draft_model
from inference.engine.load.memory.kv_memory import (
    SHORTEST_USEFUL_CONTEXT,
    cpu_kv_share,
    positions_that_fit,
)
from inference.engine.load.memory.memory_use import HostGauge
from inference.engine.load.trial.quality import quality_in_words
from inference.engine.load.trial.trial import Trial, try_out
from inference.engine.load.trial.trial_steps import run_largest_steps
from inference.engine.ranks.lead import lead_ranks
from inference.engine.ranks.ranked_model import RankedModel
from inference.engine.sampling.drawer_choice import choose_drawer
from inference.engine.sampling.drawing import Drawer
from inference.engine.sampling.grammars import GrammarCompiler
from inference.engine.scheduling.limits import SchedulerLimits
from inference.loading.devices import free_memory_bytes, ranks_on_one_device
from inference.loading.kv_choice import planned_kv_format, wanted_kv_format
from inference.loading.loader import OpenedModel
from inference.loading.preflight import PREFILL_TOKENS_PER_STEP
from inference.loading.progress import OnProgress
from inference.models.backend import AnyModel
from inference.models.errors import UnsupportedKVError, UnsupportedModuleError
from inference.models.families.limits import MOST_POSITIONS
from inference.models.predictor import Predictor
from inference.models.registry import build_fastest_model
from inference.protocol.load import LoadProgress, LoadSpec, LoadStage
from inference.protocol.load_errors import BadSourceError, UnknownArchitectureError

STEP_S = 0.1
"""Half of what a disconnect may take to free its blocks."""


@dataclass(frozen=True, slots=True)
class BuiltModel:
    model: AnyModel
    ranked: RankedModel | None
    """The same model, where several devices share it."""
    execution: str
    """In words: which code computes, and why not a faster one."""
    drawer: Drawer
    drawing: str
    """In words: which code draws, where there was a choice."""
    limits: SchedulerLimits
    trial: Trial
    quality: str
    """In words: what quantising cost."""
    draft: BuiltDraftModel | None
    """Among what the trial measured."""
    predictor: Predictor | None
    num_positions: int | None
    """The most tokens of a text that it was built for, where memory allowed no more."""

    @property
    def draft_block_bytes(self) -> int:
        """What keys and values that only drafts need take of each block."""
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
) -> BuiltModel:
    """Raises ``LoadError``, ``EngineError``, ``ModelError``."""
    wanted = min(opened.config.max_positions, spec.max_context_tokens or MOST_POSITIONS)
    context_tokens = min(wanted, _most_positions(spec, opened))
    model, ranked, execution = _fastest_model(spec, opened, context_tokens, cache_dir / "native")
    predictor = None
    if opened.config.has_predictor:
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
    trial = try_out(spec, model, drawer, limits, host_gauge, opened.num_parameters, context_tokens)
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
        model=model,
        ranked=ranked,
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


def _most_positions(spec: LoadSpec, opened: OpenedModel) -> int:
    """How many positions' angles are worth a table: no more than memory can serve."""
    config, device, num_ranks = opened.config, opened.factory.device, spec.tensor_parallel
    is_cpu = device.type == "cpu"
    budget_bytes = spec.kv_memory_bytes
    if budget_bytes is None:
        free_bytes = free_memory_bytes(device) - spec.promised_bytes - opened.need.load_bytes
        num_devices = num_ranks // ranks_on_one_device(spec, device)
        budget_bytes = int(max(0, free_bytes) * num_devices * (cpu_kv_share() if is_cpu else 1))
    is_native = is_cpu and num_ranks == 1 and opened.factory.dtype == torch.float32
    kv_format = planned_kv_format(spec, device, is_native)
    least, scaling = SHORTEST_USEFUL_CONTEXT, config.rope_scaling
    if scaling is not None and scaling.kind == "longrope":
        # Which divisors hold is decided by the context that the model declares.
        least = max(least, scaling.original_max_positions + 1)
    return max(positions_that_fit(config, budget_bytes, kv_format), least)


def _fastest_model(
    spec: LoadSpec, opened: OpenedModel, context_tokens: int, native_cache_dir: Path
) -> tuple[AnyModel, RankedModel | None, str]:
    """The model, the same where ranks share it, and in words what computes it. Which path runs is
    certain only now: one that was not foreseen may not have the KV format."""
    kv_format = wanted_kv_format(spec)
    try:
        if opened.shares:
            ranked, words = lead_ranks(spec, opened, context_tokens, kv_format)
            return ranked, ranked, words
        model, words = build_fastest_model(
            opened.config, opened.weights, context_tokens, native_cache_dir, kv_format
        )
        return model, None, words
    except UnsupportedKVError as error:
        raise BadSourceError(str(error)) from None
    except UnsupportedModuleError as error:
        raise UnknownArchitectureError(str(error)) from error


def _scheduler_limits(spec: LoadSpec, model: AnyModel) -> SchedulerLimits:
    return SchedulerLimits(
        max_running=spec.max_concurrent_sequences,
        max_queue_depth=spec.max_queue_depth,
        max_queue_wait_s=spec.max_queue_wait_s,
        max_queue_share_percent=spec.max_queue_share_percent,
        prefill_tokens_per_step=PREFILL_TOKENS_PER_STEP[model.device.type],
        target_step_s=STEP_S,
    )
