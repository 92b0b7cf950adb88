"""A model all of whose layers see only a window releases the blocks that slid out of it while a
sequence runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inference.engine.cache.kv_cache import KVCache
from inference.engine.engine import Engine
from inference.models.cache.paged_kv import LayerKV, PagedKV
from tests.inference.engine.asking import sequence_of, submit, tokens_of
from tests.inference.engine.conftest import Pair, build_pair
from tests.inference.engine.test_parity import engine_for, prompt_of

NUM_TOKENS = 120


@pytest.fixture(params=[pytest.param("torch", marks=pytest.mark.slow), "native"])
def sliding(request: pytest.FixtureRequest, native_cache_dir: Path) -> Pair:
    """A window of 24 tokens."""
    return build_pair("mistral", request.param, native_cache_dir)


def kv_cache_of(engine: Engine) -> KVCache:
    return engine.scheduler.kv_cache


def spoil_free_blocks(engine: Engine) -> None:
    """Fills blocks that no sequence holds with NaN, as a failed sequence would leave them."""
    kv_cache = kv_cache_of(engine)
    held = {b for s in engine.scheduler.running for b in s.block_ids[s.num_dropped_blocks :]}
    free = torch.tensor([b for b in range(kv_cache.allocator.num_blocks) if b not in held])
    kv = engine.executor.runner.kv  # type: ignore[attr-defined]
    if not isinstance(kv, PagedKV):
        for tensor in (kv.keys, kv.values):
            tensor.view(torch.uint8).index_fill_(1, free, 255)
        return
    for layer in kv.layers:
        assert isinstance(layer, LayerKV)
        size = kv_cache.block_tokens
        by_block = layer.entries[: kv_cache.allocator.num_blocks * size].view(-1, size, 2, 2, 16)
        by_block.index_fill_(0, free, float("nan"))


def test_two_run_to_their_ends_where_their_whole_contexts_would_not_fit(sliding: Pair) -> None:
    contexts = 2 * -(-(40 + NUM_TOKENS) // sliding.block_tokens)
    engine = engine_for(sliding, num_kv_blocks=contexts * 2 // 3, prefill_tokens_per_step=9)
    prompts = {"a": prompt_of(40, seed=1), "b": prompt_of(11, seed=2)}
    for name, prompt in prompts.items():
        submit(engine, name, prompt, NUM_TOKENS)
    answers: dict[str, list[int]] = {"a": [], "b": []}
    while engine.has_work:
        for output in engine.step().outputs:
            answers[output.sequence_id].extend(output.token_ids)  # type: ignore[union-attr]
        engine.scheduler.check_integrity()
        spoil_free_blocks(engine)
    assert engine.stats().num_preemptions == 0
    assert answers == {name: sliding.greedy(p, NUM_TOKENS) for name, p in prompts.items()}


def test_what_slid_out_stays_known(sliding: Pair) -> None:
    engine = engine_for(sliding)
    prompt = prompt_of(100, seed=3)
    for name in ("first", "again"):
        submit(engine, name, prompt, 40)
        assert tokens_of(engine)[name] == sliding.greedy(prompt, 40)
    assert engine.stats().prefix_hit_tokens >= 64


def test_a_sequence_holds_its_window_and_what_is_not_computed_yet() -> None:
    cache = KVCache(num_blocks=16, block_tokens=4, window=6)
    sequence = sequence_of(range(40))
    assert cache.admit(sequence)
    held = []
    for num_computed in (3, 8, 9, 16, 40):
        sequence.num_computed_tokens = num_computed
        cache.register_computed(sequence)
        held.append(cache.allocator.num_used)
        cache.check_integrity([sequence])
    # The row at 8 sees 3 to 8, that at 9 sees 4 to 9, that at 16 sees 11 to 16.
    assert held == [10, 10, 9, 8, 2]
    cache.release(sequence)
    cache.check_integrity([])
    assert cache.allocator.num_used == 0
    assert cache.admit(sequence) and sequence.num_dropped_blocks == 0


def test_without_a_window_nothing_is_released() -> None:
    cache = KVCache(num_blocks=16, block_tokens=4)
    sequence = sequence_of(range(40))
    assert cache.admit(sequence)
    sequence.num_computed_tokens = 40
    cache.register_computed(sequence)
    assert cache.allocator.num_used == 10


def test_blocks_that_slid_out_and_are_anothers_now_stay_known() -> None:
    cache = KVCache(num_blocks=6, block_tokens=4, window=6)
    first = sequence_of(range(24))
    assert cache.admit(first)
    first.num_computed_tokens = 24
    cache.register_computed(first)
    other = sequence_of([77] * 9)
    assert cache.admit(other), "in blocks that the first one released"
    assert set(other.block_ids) & set(first.block_ids)
    other.num_computed_tokens = 8
    cache.register_computed(other)
    known = cache.known_prefix(other)[0]
    assert len(known) == 2
    cache.invalidate_prefix(first)
    assert cache.known_prefix(other)[0] == known
    cache.check_integrity([first, other])


def test_blocks_that_slid_out_and_are_still_its_own_are_forgotten() -> None:
    cache = KVCache(num_blocks=6, block_tokens=4, window=6)
    sequence = sequence_of(range(24))
    assert cache.admit(sequence)
    sequence.num_computed_tokens = 24
    cache.register_computed(sequence)
    assert len(cache.known_prefix(sequence)[0]) == 5
    cache.invalidate_prefix(sequence)
    assert cache.known_prefix(sequence)[0] == []
    cache.check_integrity([sequence])
