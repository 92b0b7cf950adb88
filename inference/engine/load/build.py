"""Puts an engine together from a built model and the memory it may use."""

from __future__ import annotations

import time
from collections.abc import Callable

from inference.engine.adapters import Adapters
from inference.engine.cache.kv_cache import DEFAULT_BLOCK_TOKENS, KVCache
from inference.engine.cache.prefix_disk import PrefixDisk
from inference.engine.cache.prefix_files import PrefixFiles
from inference.engine.engine import Engine
from inference.engine.images.image_rows import ImageProcessor, ImageRows
from inference.engine.load.kv_memory import wanted_slots
from inference.engine.model_runner import ModelRunner, TensorExecutor
from inference.engine.sampling.drawer_choice import choose_drawer
from inference.engine.sampling.drawing import Drawer
from inference.engine.sampling.grammars import GrammarCompiler
from inference.engine.sampling.sampler import Sampler
from inference.engine.scheduling.admission import EngineLimits
from inference.engine.scheduling.pace import PrefillAverage
from inference.engine.scheduling.run_ahead import RunAhead, StepsAhead
from inference.engine.scheduling.scheduler import Scheduler
from inference.engine.scheduling.step_groups import StepGroups
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from inference.engine.speculation.automatic import AutomaticSpeculator
from inference.engine.speculation.draft_model import DraftModelSpeculator
from inference.engine.speculation.draft_runner import DraftRunner
from inference.engine.speculation.predictor_runner import PredictorRunner
from inference.engine.speculation.speculator import (
    DEFAULT_DRAFT_TOKENS,
    LookupSpeculator,
    Speculator,
)
from inference.engine.stages.staged_executor import StagedExecutor
from inference.engine.stages.staged_model import StagedModel
from inference.models.backend import AnyModel, AnyPredictor
from inference.models.cache.kv_format import cache_layout
from inference.models.vision_config import KEPT_ROWS_BYTES

PREDICTED = "multi-token prediction"


def build_engine(
    model: AnyModel,
    *,
    context_tokens: int,
    num_kv_blocks: int,
    kept_kv_blocks: int | None = None,
    num_state_slots: int | None = None,
    drawer: Drawer | None = None,
    block_tokens: int = DEFAULT_BLOCK_TOKENS,
    scheduler_limits: SchedulerLimits | None = None,
    grammars: GrammarCompiler | None = None,
    adapters: Adapters | None = None,
    prefix_files: PrefixFiles | None = None,
    prefix_fingerprint: str = "",
    image_processor: ImageProcessor | None = None,
    prefill_average: PrefillAverage | None = None,
    run_ahead: bool | None = None,
    speculator: Speculator | None = None,
    draft_model: AnyModel | None = None,
    draft_positions: int | None = None,
    draft_tokens: int = DEFAULT_DRAFT_TOKENS,
    predictor: AnyPredictor | None = None,
    staged: StagedModel | None = None,
    clock: Callable[[], float] = time.monotonic,
    check_when_idle: bool = False,
) -> Engine:
    """``num_kv_blocks`` must hold ``context_tokens``: then the oldest sequence can always run to
    its end, whatever others wait for. ``kept_kv_blocks``: see ``inference.engine.cache.kv_cache``.
    ``num_state_slots``: of a model with recurrent layers; ``None`` for as many as are wanted.
    ``prefix_files``: where prefixes survive the engine; those of recurrent layers do not.
    ``image_processor``: of a model with a tower. ``drawer`` and ``run_ahead``: ``None`` for what
    suits the model's device. ``speculator``: ``None`` for no drafts, or those of ``draft_model``,
    which has the model's vocabulary and reads at most ``draft_positions`` tokens of a text
    (``None``: its config's limit), or of the model's own ``predictor``, up to ``draft_tokens`` a
    step; a ``predictor`` beside a ``LookupSpeculator``: whichever pays. ``staged``: ``model``,
    where its stages are to work side by side."""
    assert num_kv_blocks * block_tokens >= context_tokens
    limits = scheduler_limits or SchedulerLimits()
    if not cache_layout(model.config).has_states:
        num_state_slots = 0
    elif num_state_slots is None:
        num_state_slots = wanted_slots(limits.max_running)
    kv_cache = KVCache(
        num_kv_blocks, block_tokens, kept_kv_blocks, num_state_slots, model.config.widest_window
    )
    kv = model.new_kv(num_kv_blocks, block_tokens, num_state_slots)
    model.capture(kv, max_rows=limits.max_running, context_tokens=context_tokens)
    prefix_disk = None
    if prefix_files is not None and not num_state_slots:
        prefix_disk = PrefixDisk(prefix_files, kv_cache, kv, prefix_fingerprint)
    sampler = Sampler(model.config.vocab_size, drawer or choose_drawer(model)[0])
    images = None
    if model.tower is not None and image_processor is not None:
        images = ImageRows(model.tower, image_processor, KEPT_ROWS_BYTES)
    following = None
    if predictor is not None:
        following = PredictorRunner(predictor, num_kv_blocks, block_tokens)
        assert draft_model is None, "one origin of drafts that takes memory"
        predicted = DraftModelSpeculator(following, kv_cache, draft_tokens, PREDICTED)
        if speculator is None:
            speculator = predicted
        else:
            assert isinstance(speculator, LookupSpeculator), "it is weighed against the predictor"
            speculator = AutomaticSpeculator(speculator, predicted, following)
        run_ahead = False  # a step follows the one before, whose tokens it has to know
    runner = ModelRunner(model, kv, adapters, images, following)
    executor = TensorExecutor(runner, sampler, model.device)
    if draft_model is not None:
        assert speculator is None, "one origin of drafts"
        draft_kv = draft_model.new_kv(num_kv_blocks, block_tokens)
        draft_model.capture(draft_kv, max_rows=limits.max_running, context_tokens=context_tokens)
        drafter = DraftRunner(
            draft_model,
            draft_kv,
            vocab_size=model.config.vocab_size,
            num_positions=draft_positions or draft_model.config.max_positions,
        )
        speculator = DraftModelSpeculator(drafter, kv_cache, draft_tokens)
    scheduler = Scheduler(kv_cache, limits, speculator)
    steps: StepsAhead | None = None
    if staged is not None:
        groups = StagedExecutor(executor, staged)
        steps = StepGroups(groups, scheduler, num_groups=staged.num_stages)
    elif run_ahead or (run_ahead is None and model.device.type == "cuda"):
        steps = RunAhead(executor, scheduler)
    return Engine(
        executor,
        scheduler,
        EngineLimits(
            context_tokens=context_tokens,
            vocab_size=model.config.vocab_size,
            vision=None if images is None else model.config.vision,
        ),
        run_ahead=steps,
        grammars=grammars,
        adapters=adapters,
        prefix_disk=prefix_disk,
        prefill_average=prefill_average,
        clock=clock,
        check_when_idle=check_when_idle,
    )
