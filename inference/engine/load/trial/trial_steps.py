"""A fresh model's first steps: what the largest take, and how fast prompts go.

They run over blocks of their own, given back afterwards, so that nothing of them is left in the KV
cache. What depth costs is measured on blocks that are zero, or are another part of the context as
well: attention reads them all the same. No step is longer than the context that the model was built
for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch

from inference.engine.cache.kv_cache import DEFAULT_BLOCK_TOKENS
from inference.engine.scheduling.chunks import SMALLEST_CHUNK
from inference.engine.scheduling.limits import SchedulerLimits
from inference.models.backend import AnyModel
from inference.models.batch import EMPTY_STATE, LONE_STATE, NUM_LONE_STATES, Batch, PrefillSpan
from inference.models.cache.kv_format import kv_bytes_per_block, kv_bytes_per_token
from inference.models.cache.layout import cache_layout
from inference.models.layers.attention import MOST_GATHERED_BYTES
from inference.protocol.prefill_speed import PrefillSpeed

LARGEST_TRIAL_OPERATIONS = 10**11
"""Multiplications of weights that a trial on a CPU may take: a second or two. A larger model is
tried with fewer rows, and what more of them would take is small beside its weights."""
TRIAL_STEP_S = 0.1
"""How long a timed chunk should take: as long as the engine lets one take."""
NUM_TIMED = 2
DEEPEST_TRIAL_TOKENS = 2048
"""Deep enough to tell what depth costs; longer prompts follow by the formula."""


@torch.inference_mode()
def run_largest_steps(
    model: AnyModel, limits: SchedulerLimits, context_tokens: int, num_parameters: int
) -> int:
    """The most rows that a step holds of prompts and of sequences that decode, a chunk at a
    context's end, and the widest decode step, for somebody else's gauge to see. On a CPU a model
    that copies no context takes no more for a deep row than for one that has just begun: there the
    first of these is all. Returns the bytes of the blocks and states that they ran over, which the
    gauge sees too."""
    device, most_rows = model.device, _most_rows(model.device, num_parameters)
    num_tokens = min(limits.prefill_tokens_per_step, most_rows)
    num_rows = min(limits.max_running, most_rows)
    prompts = _prompts(num_tokens, context_tokens, device)
    num_blocks = sum(len(span.block_ids) for span in prompts.spans)
    kv = model.new_kv(num_blocks, DEFAULT_BLOCK_TOKENS, NUM_LONE_STATES)
    model.forward(_beside_decodes(prompts, num_rows), kv)
    num_columns = _num_blocks(context_tokens)
    if model.copies_context:
        num_last = num_tokens if device.type == "cuda" else SMALLEST_CHUNK
        model.forward(_last_chunk(num_last, context_tokens, num_blocks, device), kv)
        num_columns = min(num_columns, _columns_to_gather(model, num_rows))
    if model.copies_context or device.type == "cuda":
        model.forward(_decode_batch(num_rows, num_columns, device), kv)
    _synchronize(device)
    block_bytes = kv_bytes_per_block(model.config, DEFAULT_BLOCK_TOKENS, model.kv_format)
    state_bytes = NUM_LONE_STATES * cache_layout(model.config).state_bytes_per_slot
    return (num_blocks + 1) * block_bytes + state_bytes


@torch.inference_mode()
def measure_prefill(
    model: AnyModel,
    limits: SchedulerLimits,
    context_tokens: int,
    clock: Callable[[], float] = time.perf_counter,
) -> PrefillSpeed:
    """Times a chunk at the start of a prompt and one deep in it, each of the size that the engine
    would run in ``TRIAL_STEP_S`` (32 tokens at least); the better of two."""
    window = model.config.sliding_window
    most_tokens = min(context_tokens, DEEPEST_TRIAL_TOKENS + limits.prefill_tokens_per_step)
    kv = model.new_kv(_num_blocks(most_tokens), DEFAULT_BLOCK_TOKENS, NUM_LONE_STATES)

    def chunk_s(start: int, end: int) -> float:
        began_s = clock()
        model.forward(_prefill_batch(start, end, model.device), kv)
        _synchronize(model.device)
        return clock() - began_s

    smallest = min(SMALLEST_CHUNK, context_tokens)
    chunk_s(0, smallest)  # pays for first times
    size = int(smallest * TRIAL_STEP_S / max(chunk_s(0, smallest), 1e-6))
    size = min(max(size, smallest), limits.prefill_tokens_per_step, context_tokens)
    shallow_s = min(chunk_s(0, size) for _ in range(NUM_TIMED)) / size
    depth = min(most_tokens, window or most_tokens) - size
    if depth < size:  # nothing to tell them apart by
        return PrefillSpeed(token_s=shallow_s, window_tokens=window)
    deep_s = min(chunk_s(depth, depth + size) for _ in range(NUM_TIMED)) / size
    # A chunk's tokens are half a chunk deep on average, at either end.
    growth_s = max(0.0, deep_s - shallow_s) / depth
    token_s = max(shallow_s - growth_s * size / 2, shallow_s / 2)
    return PrefillSpeed(token_s=token_s, growth_s=growth_s, window_tokens=window)


def _most_rows(device: torch.device, num_parameters: int) -> int:
    """By arithmetic, not by the clock: the same model always has the same trial."""
    if device.type == "cuda":
        return 2**31
    return max(SMALLEST_CHUNK, LARGEST_TRIAL_OPERATIONS // num_parameters)


def _columns_to_gather(model: AnyModel, num_rows: int) -> int:
    """Blocks of each row, so that a decode step copies as many keys and values at once as it ever
    does."""
    num_layers = len(cache_layout(model.config).attention_layers)
    token_bytes = kv_bytes_per_token(model.config, model.kv_format) // num_layers
    return _num_blocks(-(-MOST_GATHERED_BYTES // (token_bytes * num_rows)))


def _num_blocks(num_tokens: int) -> int:
    return -(-num_tokens // DEFAULT_BLOCK_TOKENS)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _prefill_batch(start: int, end: int, device: torch.device) -> Batch:
    token_ids = torch.zeros(end - start, dtype=torch.int64, device=device)
    return Batch.of_sequence(token_ids, DEFAULT_BLOCK_TOKENS, start=start)


def _prompts(num_tokens: int, context_tokens: int, device: torch.device) -> Batch:
    """The starts of as many sequences as it takes, each in blocks of its own."""
    spans: list[PrefillSpan] = []
    slots: list[torch.Tensor] = []
    first_block = 0
    for first_row in range(0, num_tokens, context_tokens):
        length = min(context_tokens, num_tokens - first_row)
        blocks = torch.arange(first_block, first_block + _num_blocks(length), device=device)
        spans.append(PrefillSpan(first_row, first_row + length, 0, length, blocks))
        slots.append(torch.arange(length, device=device) + first_block * DEFAULT_BLOCK_TOKENS)
        first_block += len(blocks)
    lasts = [span.last_row - 1 for span in spans]
    return Batch(
        token_ids=torch.zeros(num_tokens, dtype=torch.int64, device=device),
        positions=torch.cat([torch.arange(span.end, device=device) for span in spans]),
        slots=torch.cat(slots),
        spans=tuple(spans),
        logit_rows=torch.tensor(lasts, device=device),
    )


def _last_chunk(
    num_tokens: int, context_tokens: int, num_blocks: int, device: torch.device
) -> Batch:
    """The end of a sequence as long as may be. Its blocks are ``num_blocks``, over and over."""
    start = max(0, context_tokens - num_tokens)
    positions = torch.arange(start, context_tokens, device=device)
    blocks = torch.arange(_num_blocks(context_tokens), device=device) % num_blocks
    return Batch(
        token_ids=torch.zeros_like(positions),
        positions=positions,
        slots=positions % (num_blocks * DEFAULT_BLOCK_TOKENS),
        spans=(PrefillSpan(0, len(positions), start, context_tokens, blocks),),
        logit_rows=torch.arange(len(positions), device=device)[-1:],
    )


def _beside_decodes(prompts: Batch, num_rows: int) -> Batch:
    """The same prompts, and rows that decode with a context of one token."""
    decodes = _decode_batch(num_rows, 1, prompts.token_ids.device)
    spans = (
        replace(span, first_row=span.first_row + num_rows, last_row=span.last_row + num_rows)
        for span in prompts.spans
    )
    assert prompts.logit_rows is not None
    of_decodes = torch.arange(num_rows, device=prompts.logit_rows.device)
    return Batch(
        token_ids=torch.cat((decodes.token_ids, prompts.token_ids)),
        positions=torch.cat((decodes.positions, prompts.positions)),
        slots=torch.cat((decodes.slots, prompts.slots)),
        block_ids=decodes.block_ids,
        spans=tuple(spans),
        logit_rows=torch.cat((of_decodes, prompts.logit_rows + num_rows)),
        state_reads=decodes.state_reads,
        state_writes=decodes.state_writes,
    )


def _decode_batch(num_rows: int, num_blocks: int, device: torch.device) -> Batch:
    zeros = torch.zeros(num_rows, dtype=torch.int64, device=device)
    block_ids = torch.zeros(num_rows, num_blocks, dtype=torch.int64, device=device)
    return Batch(
        token_ids=zeros,
        positions=zeros,
        slots=zeros,
        block_ids=block_ids,
        state_reads=zeros + EMPTY_STATE,
        state_writes=zeros + LONE_STATE,
    )
