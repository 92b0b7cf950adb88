"""One forward a step: rows that decode beside prompts have the logits that they have alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inference.models.step_input import StepInput
from tests.inference.engine.conftest import VOCAB_SIZE, Pair, build_pair
from tests.inference.models.steps import Query, step_of

NUM_DECODES = 3


@pytest.fixture(params=["torch", "native"])
def pair(request: pytest.FixtureRequest, native_cache_dir: Path) -> Pair:
    return build_pair("qwen3", request.param, native_cache_dir)


def ids(num_tokens: int, seed: int) -> list[int]:
    return [(index * 13 + seed * 7) % VOCAB_SIZE for index in range(num_tokens)]


DECODES: list[Query] = [([40 + block], 4, [block]) for block in range(NUM_DECODES)]
PROMPTS: list[Query] = [(ids(6, 5), 0, [3]), (ids(7, 6)[5:], 5, [4])]
"""Three sequences of four tokens and one that decodes, and two prompts: one from its start, one
whose first five tokens are in its blocks."""


def steps(block_tokens: int) -> tuple[StepInput, list[StepInput]]:
    """One of all of them, and one for each half."""
    return (
        step_of(
            *DECODES,
            *PROMPTS,
            block_tokens=block_tokens,
            num_decodes=NUM_DECODES,
            logit_rows=[0, 1, 2, 8, 10],
        ),
        [
            step_of(*DECODES, block_tokens=block_tokens, num_decodes=NUM_DECODES),
            step_of(*PROMPTS, block_tokens=block_tokens, logit_rows=[5, 7]),
        ],
    )


def filled(pair: Pair) -> object:
    """Blocks with what came before the step."""
    kv = pair.model.new_kv(5, pair.block_tokens)
    for block, num_tokens in enumerate((4, 4, 4, 0, 5)):
        if num_tokens:
            query = ids(num_tokens, block), 0, [block]
            pair.model.forward(step_of(query, block_tokens=pair.block_tokens), kv)
    return kv


@torch.inference_mode()
def test_a_mixed_step_computes_what_its_halves_do(pair: Pair) -> None:
    mixed, halves = steps(pair.block_tokens)
    together = pair.model.forward(mixed, filled(pair))
    kv = filled(pair)
    apart = torch.cat([pair.model.forward(half, kv) for half in halves])
    assert torch.allclose(together, apart, atol=1e-4)
    assert not torch.allclose(together[0], together[1], atol=1e-2), "rows have tokens of their own"


@torch.inference_mode()
def test_a_mixed_step_leaves_what_its_halves_leave(pair: Pair) -> None:
    mixed, halves = steps(pair.block_tokens)
    found = []
    for parts in ([mixed], halves):
        kv = filled(pair)
        for part in parts:
            pair.model.forward(part, kv)
        following: list[Query] = [([5], 5, [block]) for block in range(NUM_DECODES)]
        step = step_of(*following, block_tokens=pair.block_tokens, num_decodes=NUM_DECODES)
        found.append(pair.model.forward(step, kv))
    assert torch.allclose(*found, atol=1e-4)
