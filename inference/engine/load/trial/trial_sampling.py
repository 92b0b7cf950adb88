"""Samples as much as a step ever does, while the caller measures the memory: every running sequence
gets a token from adjusted scores, and a prompt's tokens are scored beside them. The model's own
steps do not show it: on a large vocabulary, sampling takes several times the memory of the
logits."""

from __future__ import annotations

import torch

from inference.engine.sampling.drawing import Drawer
from inference.engine.sampling.logprobs import token_logprobs
from inference.engine.sampling.row_pieces import rows_at_once
from inference.engine.sampling.sampler import Sampler
from inference.engine.scheduling.scheduler import SCORED_TOKENS_PER_STEP
from inference.engine.scheduling.sequence import Sequence
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from inference.models.backend import AnyModel
from inference.protocol.sampling import SamplingParams

ADJUSTED = SamplingParams(max_tokens=1, temperature=0.0, logit_bias={0: 1.0})
DRAWN = SamplingParams(
    max_tokens=1, temperature=1.0, top_p=0.99, seed=0, logit_bias={0: 1.0}, top_logprobs=1
)
"""Draws from equal scores: the nucleus is wider than what a drawer looks at first."""


@torch.inference_mode()
def run_largest_sampling(model: AnyModel, drawer: Drawer, limits: SchedulerLimits) -> None:
    """The caller's gauge sees what it takes."""
    vocab_size, device = model.config.vocab_size, model.device
    decoded, scored = (
        torch.full((num_rows, vocab_size), 0.5, device=device)
        for num_rows in (limits.max_running, SCORED_TOKENS_PER_STEP)
    )
    logits = torch.cat([decoded, scored])
    del decoded, scored
    # Rows are drawn some at a time: more than those take no more memory, and longer.
    num_drawn = min(limits.max_running, rows_at_once(vocab_size))
    sequences = [_sequence(row, row < num_drawn) for row in range(limits.max_running)]
    Sampler(vocab_size, drawer).sample(sequences, logits[: len(sequences)])
    num_scored = min(SCORED_TOKENS_PER_STEP, rows_at_once(vocab_size))
    token_logprobs(logits[-num_scored:], [0] * num_scored, [1] * num_scored)


def _sequence(row: int, is_drawn: bool) -> Sequence:
    return Sequence(
        f"trial-{row}",
        [0],
        DRAWN if is_drawn else ADJUSTED,
        context_tokens=2,
        arrival=row,
        deadline_s=0.0,
    )
