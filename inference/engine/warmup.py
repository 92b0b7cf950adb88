"""First passes of a fresh model: to measure what a step takes, and to have paid for first times
before a request comes."""

from __future__ import annotations

from collections.abc import Callable

import torch

from inference.engine.engine import Engine
from inference.engine.errors import WarmupError
from inference.engine.kv_cache import DEFAULT_BLOCK_TOKENS
from inference.engine.scheduler import SchedulerLimits
from inference.models.batch import DecodeBatch, PrefillBatch, PrefillSpan
from inference.models.registry import AnyModel
from inference.protocol.engine import SequenceFailed, SubmitSequence
from inference.protocol.load import LoadProgress, LoadStage
from inference.protocol.sampling import SamplingParams

WARMUP_CONCURRENCY = (1, 4)
WARMUP_OUTPUT_TOKENS = 3


def warm_up(engine: Engine, vocab_size: int, on_progress: Callable[[LoadProgress], None]) -> None:
    """Runs a few short sequences to their end. Raises ``WarmupError``."""
    for done, concurrency in enumerate(WARMUP_CONCURRENCY):
        on_progress(
            LoadProgress(
                stage=LoadStage.WARMUP,
                done=done,
                total=len(WARMUP_CONCURRENCY),
                unit="steps",
                detail=f"{concurrency} at once",
            )
        )
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
                if isinstance(output, SequenceFailed):
                    raise WarmupError(f"{output.code}: {output.message}")


@torch.inference_mode()
def run_largest_steps(model: AnyModel, limits: SchedulerLimits) -> int:
    """Peak bytes that the largest prompt chunk and the widest decode step take beside weights and
    KV, on a CUDA device."""
    device = model.device
    num_tokens = min(limits.prefill_tokens_per_step, model.config.max_positions)
    num_blocks = -(-num_tokens // DEFAULT_BLOCK_TOKENS)
    kv = model.new_kv(num_blocks, DEFAULT_BLOCK_TOKENS, model.kv_dtype)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    model.prefill(_prefill_batch(num_tokens, num_blocks, device), kv)
    model.decode(_decode_batch(limits.max_running, num_blocks, device), kv)
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device) - before)


def _prefill_batch(num_tokens: int, num_blocks: int, device: torch.device) -> PrefillBatch:
    positions = torch.arange(num_tokens, device=device)
    span = PrefillSpan(0, num_tokens, 0, num_tokens, torch.arange(num_blocks, device=device))
    return PrefillBatch(
        token_ids=torch.zeros_like(positions),
        positions=positions,
        slots=positions,
        spans=(span,),
        logit_rows=positions[-1:],
    )


def _decode_batch(num_rows: int, num_blocks: int, device: torch.device) -> DecodeBatch:
    zeros = torch.zeros(num_rows, dtype=torch.int64, device=device)
    block_ids = torch.zeros(num_rows, num_blocks, dtype=torch.int64, device=device)
    return DecodeBatch(token_ids=zeros, positions=zeros, slots=zeros, block_ids=block_ids)
