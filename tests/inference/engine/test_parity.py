"""The batched, paged engine equals transformers' greedy output, token for token, in float32. Each
family's own layers are in ``tests/inference/models/families``."""

from __future__ import annotations

import random
from typing import Any

import pytest

from inference.engine.engine import Engine
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from tests.inference.engine.asking import Answers, submit, tokens_of
from tests.inference.engine.conftest import Pair

VOCAB_SIZE = 128


def prompt_of(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(VOCAB_SIZE), k=length)


def engine_for(
    pair: Pair, *, num_kv_blocks: int = 128, prefill_tokens_per_step: int = 512
) -> Engine:
    limits = SchedulerLimits(prefill_tokens_per_step=prefill_tokens_per_step)
    return pair.engine(num_kv_blocks * pair.block_tokens, limits=limits)


def check(
    pair: Any, prompts: dict[str, list[int]], answers: dict[str, list[int]], num_tokens: int
) -> None:
    assert answers.keys() == prompts.keys()
    for name, prompt in prompts.items():
        pair.check_greedy(prompt, answers[name], num_tokens)


def test_batch_of_different_lengths(pair: Any) -> None:
    prompts = {f"r{n}": prompt_of(n, seed=n) for n in (1, 7, 8, 33, 70)}
    engine = engine_for(pair)
    for sequence_id, prompt in prompts.items():
        submit(engine, sequence_id, prompt, 8)
    check(pair, prompts, tokens_of(engine), 8)


each_storage = pytest.mark.parametrize(
    "pair",
    [(name, path) for name in ("llama", "mistral") for path in ("torch", "native")],
    indirect=True,
    ids="-".join,
)
"""Whole contexts and windows: the same for all families."""


@each_storage
def test_chunked_prefill_among_decoding_sequences(pair: Any) -> None:
    engine = engine_for(pair, prefill_tokens_per_step=9)
    early, late = prompt_of(5, seed=1), prompt_of(60, seed=2)
    submit(engine, "early", early, 30)
    answers = Answers()
    answers.step(engine)
    submit(engine, "late", late, 10)
    answers.drain(engine)
    pair.check_greedy(early, answers.tokens["early"], 30)
    pair.check_greedy(late, answers.tokens["late"], 10)


@each_storage
def test_preemption_recomputes(pair: Any) -> None:
    prompts = {f"r{n}": prompt_of(20, seed=n) for n in range(4)}
    # Too little also where a sequence keeps no more than its window.
    engine = engine_for(pair, num_kv_blocks=96 // pair.block_tokens, prefill_tokens_per_step=32)
    for sequence_id, prompt in prompts.items():
        submit(engine, sequence_id, prompt, 40)
    answers = tokens_of(engine)
    assert engine.stats().num_preemptions > 0
    check(pair, prompts, answers, 40)


@each_storage
def test_prefix_hits(pair: Any) -> None:
    size = pair.block_tokens
    shared = prompt_of(5 * size, seed=3)
    prompts = {
        "first": shared,
        "same": shared,
        "longer": shared + prompt_of(13, seed=4),
        "forked": shared[: 2 * size + 4] + prompt_of(20, seed=5),
    }
    engine = engine_for(pair)
    answers = Answers()
    for sequence_id, prompt in prompts.items():
        submit(engine, sequence_id, prompt, 12)
        answers.drain(engine)
    check(pair, prompts, answers.tokens, 12)
    # The last token of a prompt is always run, so "same" shares four blocks of five.
    assert answers.cached == {"first": 0, "same": 4 * size, "longer": 5 * size, "forked": 2 * size}
