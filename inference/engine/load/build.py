"""Puts an engine together from a built model and its memory, and runs the first sequences."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import torch

from inference.engine.adapters import Adapters, LoadedAdapter
from inference.engine.divided.staged_model import StagedExecutor, StagedModel
from inference.engine.drawing import Drawer, choose_drawer
from inference.engine.engine import Engine
from inference.engine.errors import AdapterError, DoesNotFitError, OutOfMemoryFault, WarmupError
from inference.engine.executor import TensorExecutor
from inference.engine.faults import is_out_of_memory
from inference.engine.grammars import GrammarCompiler
from inference.engine.kv_cache import DEFAULT_BLOCK_TOKENS, KVCache
from inference.engine.load.kv_memory import wanted_slots
from inference.engine.load.trial import TRIAL_STEPS, report_step
from inference.engine.model_runner import ImageRows, ModelRunner
from inference.engine.prefix_disk import PrefixDisk
from inference.engine.prefix_files import PrefixFiles
from inference.engine.run_ahead import RunAhead, StepGroups, StepsAhead
from inference.engine.sampler import Sampler
from inference.engine.scheduler import EngineLimits, Scheduler
from inference.engine.speculation.draft_model import DraftModelSpeculator
from inference.engine.speculation.draft_runner import DraftRunner, PredictorRunner
from inference.engine.speculation.prompt_lookup import LookupSpeculator
from inference.engine.speculation.speculator import (
    DEFAULT_DRAFT_TOKENS,
    AutomaticSpeculator,
    Speculator,
)
from inference.engine.step import PrefillAverage
from inference.engine.waiting_queue import SchedulerLimits
from inference.loading.adapter_files import open_adapter
from inference.loading.image_processor import ImageFileProcessor
from inference.loading.loader import OpenedModel
from inference.loading.progress import OnProgress
from inference.models.backend import AnyModel, Predictor
from inference.models.errors import UnsupportedAdapterError
from inference.models.kv_format import cache_layout
from inference.models.vision_config import KEPT_ROWS_BYTES
from inference.protocol.engine import SamplingParams, SequenceFailed, SubmitSequence
from inference.protocol.load import AdapterSpec, LoadSpec
from inference.protocol.load_errors import LoadError
from inference.supervised_threads import SupervisedPool

PREDICTED = "multi-token prediction"
WARMUP_CONCURRENCY = (1, 4)
NATIVE_CONCURRENCY = (1,)
"""The native decoder compiles nothing in its steps, and has run its largest."""
AWAKENING_CONCURRENCY = (1,)
"""After a sleep kernels are compiled already."""
WARMUP_OUTPUT_TOKENS = 3
LAYOUT = 1
"""The version of how blocks are laid out: raised when the same numbers come to lie elsewhere."""


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
    image_processor: ImageFileProcessor | None = None,
    prefill_average: PrefillAverage | None = None,
    run_ahead: bool | None = None,
    speculator: Speculator | None = None,
    draft_model: AnyModel | None = None,
    draft_positions: int | None = None,
    draft_tokens: int = DEFAULT_DRAFT_TOKENS,
    predictor: Predictor | None = None,
    staged: StagedModel | None = None,
    check_when_idle: bool = False,
) -> Engine:
    """``num_kv_blocks`` must hold ``context_tokens``: then the oldest sequence can always run to
    its end. ``kept_kv_blocks``: see ``inference.engine.kv_cache``. ``num_state_slots`` ``None``: as
    many as are wanted. Recurrent layers use no ``prefix_files``. ``drawer`` and ``run_ahead``
    ``None``: what suits the device. ``draft_model`` has the model's vocabulary and reads at most
    ``draft_positions`` tokens of a text (``None``: its config's limit). A ``predictor`` beside a
    ``LookupSpeculator``: whichever pays. ``staged``: ``model``, where its stages are to work side
    by side."""
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
    sampler = Sampler(drawer or choose_drawer(model)[0])
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
        check_when_idle=check_when_idle,
    )


def first_concurrencies(model: AnyModel) -> Sequence[int]:
    return NATIVE_CONCURRENCY if model.has_own_threads else WARMUP_CONCURRENCY


def warm_up(
    engine: Engine,
    vocab_size: int,
    on_progress: OnProgress,
    concurrencies: Sequence[int] = WARMUP_CONCURRENCY,
) -> None:
    """Raises ``WarmupError`` and ``DoesNotFitError``."""
    for done, concurrency in enumerate(concurrencies, start=TRIAL_STEPS):
        total = TRIAL_STEPS + len(concurrencies)
        report_step(on_progress, done, total, f"{concurrency} at once")
        for index in range(concurrency):
            engine.submit(
                SubmitSequence(
                    sequence_id=f"warm-up-{concurrency}-{index}",
                    token_ids=[(7 * index + offset) % vocab_size for offset in range(5)],
                    params=SamplingParams(max_tokens=WARMUP_OUTPUT_TOKENS, temperature=0.0),
                )
            )
        while engine.has_work:
            for output in engine.step().outputs:
                if not isinstance(output, SequenceFailed):
                    continue
                if output.code == OutOfMemoryFault.code:
                    raise DoesNotFitError("the device ran out of memory in the model's first steps")
                raise WarmupError(f"{output.code}: {output.message}")


class AdapterLoader:
    """Loads one at a time, so downloads do not share the line and memory is asked for once."""

    def __init__(self, model: AnyModel, cache_dir: Path) -> None:
        self._model = model
        self._cache_dir = cache_dir
        self._pool = SupervisedPool(1, thread_name_prefix="adapter-loader")

    def load(self, spec: AdapterSpec) -> Future[LoadedAdapter]:
        """Does not wait. The future raises ``AdapterError``."""
        return self._pool.submit(self._load, spec)

    @torch.inference_mode()
    def _load(self, spec: AdapterSpec) -> LoadedAdapter:
        try:
            # No progress: an adapter's download is too short to report.
            opened = open_adapter(spec, self._model.config, self._cache_dir, lambda _: None)
            prepared = self._model.prepare_adapter(opened.weights)
        except (LoadError, UnsupportedAdapterError) as error:
            raise AdapterError(str(error)) from error
        except (MemoryError, RuntimeError) as error:
            if is_out_of_memory(error, self._model.device.type):
                raise AdapterError("the device has no memory left for it") from error
            raise
        return LoadedAdapter(prepared, opened.fingerprint)


def open_prefix_files(spec: LoadSpec, data_dir: Path) -> PrefixFiles | None:
    """``None`` where none is configured; the files of previous instances are deleted then."""
    directory = data_dir / "prefixes" / re.sub(r"[^A-Za-z0-9._-]", "_", spec.model)
    if spec.prefix_disk_bytes is None:
        shutil.rmtree(directory, ignore_errors=True)
        return None
    return PrefixFiles(directory, spec.prefix_disk_bytes)


def prefix_fingerprint(opened: OpenedModel, model: AnyModel, execution: str) -> str:
    """A digest of all that decides a block's content beside its tokens and its salt: the weights'
    files, what became of them while loading, the code that computes, and the KV format."""
    files = [
        (path.name, status.st_size, status.st_mtime_ns)
        for path in (*opened.weight_paths, opened.projector)
        if path is not None
        for status in [path.stat()]
    ]
    parts = (
        LAYOUT,
        files,
        model.config,
        opened.weights.report(),
        str(model.dtype),
        model.device.type,
        model.kv_format,
        DEFAULT_BLOCK_TOKENS,
        execution,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()
