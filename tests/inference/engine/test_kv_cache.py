"""Block accounting under any order of admissions, growth, registration and release. A model all of
whose layers see only a window releases the blocks that slid out of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inference.engine.kv_cache import KVCache
from inference.engine.sequence import Sequence
from tests.cases import each_case
from tests.inference.engine.asking import poison, sequence_of, submit
from tests.inference.engine.conftest import Pair, build_pair
from tests.inference.engine.test_parity import engine_for, prompt_of

BLOCK_TOKENS = 4
NUM_BLOCKS = 12


class KVCacheMachine(RuleBasedStateMachine):
    """``stored`` plays the tensors: what each block holds, as a sequence would have written it."""

    kept_blocks: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.cache = KVCache(NUM_BLOCKS, BLOCK_TOKENS, self.kept_blocks)
        self.most_held = 0
        self.seen: set[int] = set()
        """The blocks that any sequence has had."""
        self.live: list[Sequence] = []
        self.stored: dict[int, list[tuple[int, ...]]] = {}

    def write(self, sequence: Sequence, end: int) -> None:
        """Compute up to ``end``: each slot records the whole prefix that its numbers depend on."""
        for position in range(sequence.num_computed_tokens, end):
            block_id = sequence.block_ids[position // BLOCK_TOKENS]
            slots = self.stored.setdefault(block_id, [()] * BLOCK_TOKENS)
            slots[position % BLOCK_TOKENS] = tuple(sequence.token_ids[: position + 1])
        sequence.num_computed_tokens = end
        self.cache.register_computed(sequence)

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=24))
    def admit(self, tokens: list[int]) -> None:
        sequence = sequence_of(tokens)
        free_before = self.cache.allocator.num_free
        if self.cache.admit(sequence):
            assert sequence.num_computed_tokens < len(tokens)
            self.live.append(sequence)
        else:
            assert (self.cache.allocator.num_free, sequence.block_ids) == (free_before, [])

    @precondition(lambda self: self.live)
    @rule(data=st.data(), token=st.none() | st.integers(0, 1))
    def compute(self, data: st.DataObject, token: int | None) -> None:
        """Up to somewhere, or all there is and another token."""
        sequence = data.draw(st.sampled_from(self.live))
        num_tokens = len(sequence.token_ids)
        if token is None:
            self.write(sequence, data.draw(st.integers(sequence.num_computed_tokens, num_tokens)))
            return
        self.write(sequence, num_tokens)
        if self.cache.grow(sequence, num_tokens + 1):
            sequence.token_ids.append(token)
        else:
            assert self.cache.allocator.num_free == 0

    @precondition(lambda self: self.live)
    @rule(data=st.data(), is_invalid=st.booleans())
    def release(self, data: st.DataObject, is_invalid: bool) -> None:
        sequence = data.draw(st.sampled_from(self.live))
        self.live.remove(sequence)
        block_ids = set(sequence.block_ids)
        if is_invalid:
            self.cache.invalidate_prefix(sequence)
        self.cache.release(sequence)
        again = sequence_of([*sequence.token_ids, 0])
        if is_invalid and self.cache.admit(again):
            self.most_held = max(self.most_held, self.cache.allocator.num_used)
            self.seen.update(again.block_ids)
            num_shared = again.num_computed_tokens // BLOCK_TOKENS
            assert not block_ids.intersection(again.block_ids[:num_shared])
            self.cache.release(again)

    @invariant()
    def accounts_balance(self) -> None:
        self.cache.check_integrity(self.live)
        held = {block for sequence in self.live for block in sequence.block_ids}
        assert self.cache.allocator.num_used == len(held)
        self.most_held = max(self.most_held, len(held))
        self.seen |= held
        kept_blocks = NUM_BLOCKS if self.kept_blocks is None else self.kept_blocks
        assert len(self.seen) <= max(self.most_held, kept_blocks)
        for sequence in self.live:  # each reads its own tokens
            for position in range(sequence.num_computed_tokens):
                slots = self.stored[sequence.block_ids[position // BLOCK_TOKENS]]
                expected = tuple(sequence.token_ids[: position + 1])
                assert slots[position % BLOCK_TOKENS] == expected


TestKVCache = KVCacheMachine.TestCase
TestKVCache.settings = settings(stateful_step_count=40)


class FewKeptBlocksMachine(KVCacheMachine):
    kept_blocks = 3


TestFewKeptBlocks = FewKeptBlocksMachine.TestCase
TestFewKeptBlocks.settings = settings(
    max_examples=settings.default.max_examples // 2, stateful_step_count=40
)


def run_through(cache: KVCache, tokens: list[int], seen: set[int] | None = None) -> int:
    """One request from its prompt to its release; how many of its tokens were known. Its blocks are
    added to ``seen``."""
    sequence = sequence_of(tokens)
    assert cache.admit(sequence)
    if seen is not None:
        seen.update(sequence.block_ids)
    num_known = sequence.num_computed_tokens
    sequence.num_computed_tokens = len(tokens)
    cache.register_computed(sequence)
    cache.release(sequence)
    return num_known


def test_past_prompts_alone_touch_no_more_blocks_than_are_kept() -> None:
    cache = KVCache(100, BLOCK_TOKENS, kept_blocks=6)
    seen: set[int] = set()
    for prompt in range(40):
        run_through(cache, [prompt] * 8, seen)
    assert len(seen) == 6
    assert run_through(cache, [39] * 8 + [0]) == 8
    assert run_through(cache, [36] * 8 + [0]) == 0
    # A prompt longer than what is kept is known the next time.
    cache, seen = KVCache(100, BLOCK_TOKENS, kept_blocks=2), set()
    run_through(cache, [1] * 40, seen)
    assert len(seen) == 10
    assert run_through(cache, [1] * 41) == 40
    # Sequences get every block, whatever is kept.
    cache = KVCache(12, BLOCK_TOKENS, kept_blocks=0)
    for token in range(4):
        assert cache.admit(sequence_of([token] * 12))
    assert not cache.admit(sequence_of([9]))


def test_oldest_reusable_block_goes_first_and_tails_before_heads() -> None:
    cache = KVCache(4, BLOCK_TOKENS)
    first, second = sequence_of([1] * 8), sequence_of([2] * 8)
    for sequence in (first, second):
        assert cache.admit(sequence)
        sequence.num_computed_tokens = 8
        cache.register_computed(sequence)
    oldest = first.block_ids[::-1]
    cache.release(first)
    cache.release(second)
    assert [cache.allocator.allocate(), cache.allocator.allocate()] == oldest


NUM_TOKENS = 120


@pytest.fixture(params=[pytest.param("torch", marks=pytest.mark.slow), "native"])
def sliding(request: pytest.FixtureRequest, native_cache_dir: Path) -> Pair:
    """A window of 24 tokens."""
    return build_pair("mistral", request.param, native_cache_dir)


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
        held = {b for s in engine.scheduler.running for b in s.block_ids[s.num_dropped_blocks :]}
        free = {*range(engine.scheduler.kv_cache.allocator.num_blocks)} - held
        poison(engine.executor.runner.kv, free, sliding.block_tokens)  # type: ignore[attr-defined]
    assert engine.stats().num_preemptions == 0
    assert answers == {name: sliding.greedy(p, NUM_TOKENS) for name, p in prompts.items()}


@each_case(
    ("window", "held_by_end"),
    # The row at 8 sees 3 to 8, that at 9 sees 4 to 9, that at 16 sees 11 to 16.
    [(6, {3: 10, 8: 10, 9: 9, 16: 8, 40: 2}), (None, {3: 10, 40: 10})],
)
def test_a_sequence_holds_its_window_and_what_is_not_computed_yet(
    window: int | None, held_by_end: dict[int, int]
) -> None:
    cache = KVCache(num_blocks=16, block_tokens=4, window=window)
    sequence = sequence_of(range(40))
    assert cache.admit(sequence)
    for num_computed, held in held_by_end.items():
        sequence.num_computed_tokens = num_computed
        cache.register_computed(sequence)
        assert cache.allocator.num_used == held
        cache.check_integrity([sequence])
    cache.release(sequence)
    cache.check_integrity([])
    assert cache.allocator.num_used == 0
    assert cache.admit(sequence) and sequence.num_dropped_blocks == 0


def test_blocks_that_slid_out_are_forgotten_unless_they_are_anothers_now() -> None:
    cache = KVCache(num_blocks=6, block_tokens=4, window=6)
    first = sequence_of(range(24))
    assert cache.admit(first)
    first.num_computed_tokens = 24
    cache.register_computed(first)
    assert len(cache.known_prefix(first)[0]) == 5
    cache.invalidate_prefix(first)
    assert cache.known_prefix(first)[0] == []
    cache.check_integrity([first])
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
