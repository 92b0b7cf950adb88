"""The model of a load, built from opened files and tried out: what runs, what it takes, how fast it
is. Keys and values come after it, in what is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from inference.engine.kv_cache import DEFAULT_BLOCK_TOKENS
from inference.engine.load.draft import DraftModel, build_draft_model
from inference.engine.load.memory_use import HostGauge
from inference.engine.load.quality import quality_in_words
from inference.engine.load.trial import Trial, try_out
from inference.engine.load.trial_steps import run_largest_steps
from inference.engine.ranks.lead import lead_ranks
from inference.engine.sampling.drawer_choice import choose_drawer
from inference.engine.sampling.drawing import Drawer
from inference.engine.sampling.grammars import GrammarCompiler
from inference.engine.scheduling.limits import SchedulerLimits
from inference.loading.errors import BadSourceError, UnknownArchitectureError
from inference.loading.kv_choice import wanted_kv_format
from inference.loading.loader import PREFILL_TOKENS_PER_STEP, OpenedModel
from inference.loading.progress import OnProgress
from inference.models.decoder import DecoderModel
from inference.models.errors import UnsupportedKVError, UnsupportedModuleError
from inference.models.native.model import NativeModel
from inference.models.predictor import Predictor
from inference.models.registry import AnyModel, build_fastest_model
from inference.protocol.load import LoadProgress, LoadSpec, LoadStage

STEP_S = 0.1
"""Half of what a disconnect may take to free its blocks."""


@dataclass(frozen=True, slots=True)
class BuiltModel:
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
    longest = opened.config.max_positions
    context_tokens = min(longest, spec.max_context_tokens or longest)
    model, execution = _fastest_model(spec, opened, context_tokens, cache_dir / "native")
    predictor = None
    if opened.config.has_predictor:
        assert isinstance(model, DecoderModel), "its steps are not captured on CUDA"
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
    if isinstance(model, NativeModel):
        # Its threads are its own; torch's, left over from sampling, would spin on their cores.
        torch.set_num_threads(1)
    return BuiltModel(model, execution, drawer, drawing, limits, trial, quality, draft, predictor)


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
