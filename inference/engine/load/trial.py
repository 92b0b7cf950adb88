"""Measures a freshly built model on its device, beside the estimate: the memory of its largest
steps, image and sampling, and how fast prompts go. Knows no engine and no requests.

Steps run over blocks of their own, released afterwards. What depth costs is measured on blocks that
are zero or used twice: attention reads them all the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate, chain

import msgspec
import numpy as np
import torch

from inference.engine.drawing import Drawer, rows_at_once
from inference.engine.kv_cache import DEFAULT_BLOCK_TOKENS
from inference.engine.load.kv_memory import PrefillBound
from inference.engine.load.memory_use import HostGauge, MemoryGauge, gauge_for
from inference.engine.sampler import Sampler, token_logprobs
from inference.engine.scheduler import SCORED_TOKENS_PER_STEP
from inference.engine.sequence import Sequence
from inference.engine.step import SMALLEST_CHUNK
from inference.engine.waiting_queue import SchedulerLimits
from inference.loading.devices import earlier_loads_on
from inference.loading.embedding_loader import OpenedEmbeddingModel
from inference.loading.progress import OnProgress
from inference.models.backend import AnyDevice, AnyModel
from inference.models.kv_format import cache_layout, kv_bytes_per_token
from inference.models.layers.attention import MOST_GATHERED_BYTES
from inference.models.step_input import EMPTY_STATE, LONE_STATE, NUM_LONE_STATES, Ints, StepInput
from inference.models.vision_config import VisionConfig
from inference.protocol.engine import SamplingParams
from inference.protocol.load import LoadSpec, PrefillSpeed
from inference.protocol.load_report import LoadProgress, LoadReport, LoadStage

TRIAL_STEPS = 3
"""The largest steps, the largest sampling and prompts; a load's progress counts them."""
LARGEST_TRIAL_OPERATIONS = 5 * 10**10
"""Multiplications of weights that a trial on a CPU may take: about half a second. A larger model is
tried with fewer rows, and what more of them would take is small beside its weights."""
TRIAL_STEP_S = 0.1
"""How long a timed chunk should take: as long as the engine lets one take."""
DEEPEST_TRIAL_TOKENS = 2048
"""Deep enough to measure the cost of depth; the formula extends it to longer prompts."""
ADJUSTED = SamplingParams(max_tokens=1, temperature=0.0, logit_bias={0: 1.0})
DRAWN = SamplingParams(
    max_tokens=1, temperature=1.0, top_p=0.99, seed=0, logit_bias={0: 1.0}, top_logprobs=1
)
"""Draws from equal scores: the nucleus is wider than what a drawer looks at first."""


def report_step(on_progress: OnProgress, done: int, total: int, detail: str = "") -> None:
    on_progress(
        LoadProgress(stage=LoadStage.WARMUP, done=done, total=total, unit="steps", detail=detail)
    )


@dataclass(frozen=True, slots=True)
class DeviceTrial:
    device: AnyDevice
    load_bytes: int
    """All but KV."""
    process_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    devices: tuple[DeviceTrial, ...]
    """The device where the model samples comes first."""
    prefill_speed: PrefillSpeed
    bound: PrefillBound

    @property
    def load_bytes(self) -> int:
        return sum(one.load_bytes for one in self.devices)

    @property
    def process_bytes(self) -> int:
        return sum(one.process_bytes for one in self.devices)


def try_out(
    spec: LoadSpec,
    model: AnyModel,
    drawer: Drawer,
    limits: SchedulerLimits,
    host_gauge: HostGauge,
    num_parameters: int,
    context_tokens: int,
    others: Iterable[tuple[AnyDevice, MemoryGauge]] = (),
    on_step: Callable[[int], None] = lambda done: None,
) -> Trial:
    """``host_gauge`` was opened before anything was loaded. ``others``: gauges of other processes
    that compute parts of the model. ``on_step`` gets how many of ``TRIAL_STEPS`` are done."""
    gauges: dict[AnyDevice, list[MemoryGauge]] = {
        model.device: [gauge_for(model.device, host_gauge)]
    }
    for device, gauge in others:
        gauges.setdefault(device, []).append(gauge)
    for gauge in chain(*gauges.values()):
        gauge.watch()
    run_largest_image(model)
    num_blocks = run_largest_steps(model, limits, context_tokens, num_parameters)
    on_step(1)
    run_largest_sampling(model, drawer, limits)
    on_step(2)
    trial_kv_bytes = model.cache_bytes(num_blocks, DEFAULT_BLOCK_TOKENS, NUM_LONE_STATES)
    devices = tuple(
        DeviceTrial(
            device,
            sum(gauge.used_bytes() for gauge in here) - trial_kv_bytes[device],
            sum(gauge.process_bytes for gauge in here),
        )
        for device, here in gauges.items()
    )
    measured = measure_prefill(model, limits, context_tokens)
    earlier = earlier_loads_on(spec, model.device)
    average = None if earlier is None else earlier.prefill_speed
    return Trial(
        devices=devices,
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


@torch.inference_mode()
def run_largest_steps(
    model: AnyModel, limits: SchedulerLimits, context_tokens: int, num_parameters: int
) -> int:
    """On a CPU a model that copies no context takes no more for a deep row than for one that has
    just begun, so the first step is all. Returns how many blocks they ran over, which the gauge
    sees too, beside ``NUM_LONE_STATES`` states."""
    device, most_rows = model.device, _most_rows(model.device, num_parameters)
    num_rows = min(limits.max_running, most_rows // 2)
    num_tokens = min(limits.prefill_tokens_per_step, most_rows - num_rows)
    mixed = _mixed_step(num_rows, num_tokens, context_tokens)
    num_blocks = int(mixed.block_table.max()) + 1
    kv = model.new_kv(num_blocks, DEFAULT_BLOCK_TOKENS, NUM_LONE_STATES)
    model.forward(mixed, kv)
    num_columns = _num_blocks(context_tokens)
    if model.copies_context:
        num_last = num_tokens if device.type == "cuda" else SMALLEST_CHUNK
        start = max(0, context_tokens - num_last)
        model.forward(_chunk(start, context_tokens, num_blocks), kv)
        num_columns = min(num_columns, _columns_to_gather(model, num_rows))
    if model.copies_context or device.type == "cuda":
        num_context = min(context_tokens, num_columns * DEFAULT_BLOCK_TOKENS)
        model.forward(_decode_step(num_rows, num_context), kv)
    synchronize(device)
    return num_blocks


def run_largest_image(model: AnyModel) -> None:
    """On a CPU it runs fewer patches: what more would take is small beside the weights."""
    if (tower := model.tower) is None:
        return
    vision = tower.config
    num_patches = vision.most_patches
    if model.device.type == "cpu":
        num_patches = min(num_patches, LARGEST_TRIAL_OPERATIONS // block_weights(vision))
    side = max(math.isqrt(num_patches) // vision.merge, 1) * vision.merge
    tower(torch.zeros(side**2, vision.patch_features), (1, side, side))
    synchronize(model.device)


def block_weights(vision: VisionConfig) -> int:
    return (
        vision.depth * vision.hidden_size * (4 * vision.hidden_size + 2 * vision.intermediate_size)
    )


@torch.inference_mode()
def run_largest_sampling(model: AnyModel, drawer: Drawer, limits: SchedulerLimits) -> None:
    """On a large vocabulary, sampling takes several times the memory of the logits, which the
    model's own steps do not show."""
    vocab_size, device = model.config.vocab_size, model.device
    decoded, scored = (
        torch.full((num_rows, vocab_size), 0.5, device=device)
        for num_rows in (limits.max_running, SCORED_TOKENS_PER_STEP)
    )
    logits = torch.cat([decoded, scored])
    del decoded, scored
    # Rows are drawn in batches: a second batch would take time and no more memory.
    num_drawn = min(limits.max_running, rows_at_once(vocab_size))
    sequences = [_sequence(row, row < num_drawn) for row in range(limits.max_running)]
    Sampler(drawer).sample(sequences, logits[: len(sequences)])
    num_scored = min(SCORED_TOKENS_PER_STEP, rows_at_once(vocab_size))
    token_logprobs(logits, list(range(num_scored)), [0] * num_scored, [1] * num_scored)


@torch.inference_mode()
def measure_prefill(
    model: AnyModel,
    limits: SchedulerLimits,
    context_tokens: int,
    clock: Callable[[], float] = time.perf_counter,
) -> PrefillSpeed:
    """Times a chunk at a prompt's start and one deep in it, each of the size that the engine would
    run in ``TRIAL_STEP_S``."""
    window = model.config.sliding_window
    most_tokens = min(context_tokens, DEEPEST_TRIAL_TOKENS + limits.prefill_tokens_per_step)
    kv = model.new_kv(_num_blocks(most_tokens), DEFAULT_BLOCK_TOKENS, NUM_LONE_STATES)

    def run_s(start: int, end: int) -> float:
        began_s = clock()
        model.forward(_chunk(start, end), kv)
        synchronize(model.device)
        return clock() - began_s

    def chunk_s(start: int, end: int) -> float:
        first_s = run_s(start, end)
        if model.has_own_threads and first_s > TRIAL_STEP_S:
            return first_s  # native code compiles nothing, and has run its largest step before
        # The first run may include one-time costs.
        return min(first_s, run_s(start, end))

    smallest = min(SMALLEST_CHUNK, context_tokens)
    shallow_s = chunk_s(0, smallest)
    size = int(smallest * TRIAL_STEP_S / max(shallow_s, 1e-6))
    size = min(max(size, smallest), limits.prefill_tokens_per_step, context_tokens)
    if size > smallest:
        shallow_s = chunk_s(0, size)
    shallow_s /= size
    depth = min(most_tokens, window or most_tokens) - size
    if depth < size:  # the two depths overlap: their costs cannot be separated
        return PrefillSpeed(token_s=shallow_s, window_tokens=window)
    deep_s = chunk_s(depth, depth + size) / size
    # A chunk's tokens are half a chunk deep on average, at either end.
    growth_s = max(0.0, deep_s - shallow_s) / depth
    token_s = max(shallow_s - growth_s * size / 2, shallow_s / 2)
    return PrefillSpeed(token_s=token_s, growth_s=growth_s, window_tokens=window)


def _most_rows(device: torch.device, num_parameters: int) -> int:
    """Calculated and not timed, so that the same model always has the same trial."""
    if device.type == "cuda":
        return 2**31
    return max(SMALLEST_CHUNK, LARGEST_TRIAL_OPERATIONS // num_parameters)


def _columns_to_gather(model: AnyModel, num_rows: int) -> int:
    """Makes a decode step copy as many keys and values at once as it ever does."""
    num_layers = len(cache_layout(model.config).attention_layers)
    token_bytes = kv_bytes_per_token(model.config, model.kv_format) // num_layers
    return _num_blocks(-(-MOST_GATHERED_BYTES // (token_bytes * num_rows)))


def _num_blocks(num_tokens: int) -> int:
    return -(-num_tokens // DEFAULT_BLOCK_TOKENS)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _chunk(start: int, end: int, num_blocks: int | None = None) -> StepInput:
    blocks = np.arange(_num_blocks(end), dtype=np.int32)
    return _step(
        starts=[start],
        query_lens=[end - start],
        table=(blocks if num_blocks is None else blocks % np.int32(num_blocks))[None],
        num_decodes=0,
    )


def _mixed_step(num_rows: int, num_tokens: int, context_tokens: int) -> StepInput:
    """Each prompt has blocks of its own; decoding sequences have a context of one token."""
    lengths = [
        min(context_tokens, num_tokens - first) for first in range(0, num_tokens, context_tokens)
    ]
    width = _num_blocks(lengths[0])
    blocks = np.arange(len(lengths), dtype=np.int32)[:, None] * width + np.arange(width)
    # The last prompt may be shorter: what fills its row up is never read.
    last_block = (len(lengths) - 1) * width + _num_blocks(lengths[-1]) - 1
    prompts = np.minimum(blocks, last_block).astype(np.int32)
    return _step(
        starts=[0] * (num_rows + len(lengths)),
        query_lens=[1] * num_rows + lengths,
        table=np.concatenate((np.zeros((num_rows, width), dtype=np.int32), prompts)),
        num_decodes=num_rows,
    )


def _decode_step(num_rows: int, num_context: int) -> StepInput:
    return _step(
        starts=[num_context - 1] * num_rows,
        query_lens=[1] * num_rows,
        table=np.zeros((num_rows, _num_blocks(num_context)), dtype=np.int32),
        num_decodes=num_rows,
    )


def _step(*, starts: list[int], query_lens: list[int], table: Ints, num_decodes: int) -> StepInput:
    return StepInput.of_queries(
        [0] * sum(query_lens),
        starts,
        query_lens,
        table,
        DEFAULT_BLOCK_TOKENS,
        num_decodes=num_decodes,
        logit_rows=[end - 1 for end in accumulate(query_lens)],
        state_slots=(
            [
                LONE_STATE if start and index >= num_decodes else EMPTY_STATE
                for index, start in enumerate(starts)
            ],
            [LONE_STATE] * len(starts),
        ),
    )


def _sequence(row: int, is_drawn: bool) -> Sequence:
    return Sequence(
        f"trial-{row}",
        [0],
        DRAWN if is_drawn else ADJUSTED,
        context_tokens=2,
        arrival=row,
        deadline_s=0.0,
    )
