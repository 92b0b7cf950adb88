"""One forward a step: rows that decode beside prompts have the logits that they have alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inference.models.batch import Batch, PrefillSpan
from tests.inference.engine.conftest import VOCAB_SIZE, Pair, build_pair

NUM_DECODES = 3


@pytest.fixture(params=["torch", "native"])
def pair(request: pytest.FixtureRequest, native_cache_dir: Path) -> Pair:
    return build_pair("qwen3", request.param, native_cache_dir)


def ids(num_tokens: int, seed: int) -> torch.Tensor:
    return (torch.arange(num_tokens) * 13 + seed * 7) % VOCAB_SIZE


def mixed_batch(block_tokens: int) -> Batch:
    """Three sequences of four tokens and one that decodes, and two prompts: one from its start, one
    whose first five tokens are in its blocks. Sequence ``i`` has block ``i``."""
    decodes = torch.arange(NUM_DECODES)
    slots = decodes * block_tokens + 4
    first, second = torch.arange(6), torch.arange(5, 7)
    return Batch(
        token_ids=torch.cat((decodes + 40, ids(6, 5), ids(7, 6)[5:])),
        positions=torch.cat((torch.full((NUM_DECODES,), 4), first, second)),
        slots=torch.cat((slots, 3 * block_tokens + first, 4 * block_tokens + second)),
        block_ids=decodes.unsqueeze(1),
        spans=(
            PrefillSpan(3, 9, 0, 6, torch.tensor([3])),
            PrefillSpan(9, 11, 5, 7, torch.tensor([4])),
        ),
        logit_rows=torch.tensor([0, 1, 2, 8, 10]),
    )


def filled(pair: Pair) -> object:
    """Blocks with what came before the batch."""
    kv = pair.model.new_kv(5, pair.block_tokens)
    for block, num_tokens in enumerate((4, 4, 4, 0, 5)):
        if num_tokens:
            tokens, rows = ids(num_tokens, block), torch.arange(num_tokens)
            slots, blocks = block * pair.block_tokens + rows, torch.tensor([block])
            span = PrefillSpan(0, num_tokens, 0, num_tokens, blocks)
            pair.model.forward(Batch(tokens, rows, slots, spans=(span,), logit_rows=rows[-1:]), kv)
    return kv


@torch.inference_mode()
def test_a_mixed_step_computes_what_its_halves_do(pair: Pair) -> None:
    batch = mixed_batch(pair.block_tokens)
    together = pair.model.forward(batch, filled(pair))
    kv = filled(pair)
    apart = torch.cat(
        (pair.model.forward(batch.decodes, kv), pair.model.forward(batch.prompts, kv))
    )
    assert torch.allclose(together, apart, atol=1e-4)
    assert not torch.allclose(together[0], together[1], atol=1e-2), "rows have tokens of their own"


@torch.inference_mode()
def test_a_mixed_step_leaves_what_its_halves_leave(pair: Pair) -> None:
    batch, found = mixed_batch(pair.block_tokens), []
    for parts in ([batch], [batch.decodes, batch.prompts]):
        kv = filled(pair)
        for part in parts:
            pair.model.forward(part, kv)
        last = torch.full((NUM_DECODES,), 5)
        slots = torch.arange(NUM_DECODES) * pair.block_tokens + 5
        found.append(pair.model.forward(Batch(last, last, slots, batch.block_ids), kv))
    assert torch.allclose(*found, atol=1e-4)
