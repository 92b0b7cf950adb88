"""What a draft model reads and when: behind the sequence, bounded, and only where it pays; and what
is proposed after a text that repeats itself."""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Sequence as Ordered

import pytest

from inference.engine.kv_cache import KVCache
from inference.engine.pace import UNTRIED_ROW_SHARE, untried_step_time
from inference.engine.sequence import Sequence
from inference.engine.speculation import draft_model, prompt_lookup
from inference.engine.speculation.draft_model import (
    UNTRIED_DRAFT,
    DraftCosts,
    DraftModelSpeculator,
    DraftRow,
)
from inference.engine.speculation.prompt_lookup import LONGEST_MATCH, SHORTEST_MATCH, PromptLookup
from tests.cases import each_case
from tests.inference.engine.asking import sequence_of


@each_case(
    ("text", "most", "proposed"),
    [
        ([5, 1, 2, 3, 4, 9, 9, 1, 2], 3, [3, 4, 9]),
        ([7, 1, 2, 30, 8, 1, 2, 40, 7, 1, 2], 1, [30]),  # the longest match wins over the last
        ([1, 2, 30, 9, 1, 2, 40, 8, 1, 2], 1, [40]),  # the last of equals
        ([4, 5, 6, 4, 5, 6, 4], 8, [5, 6, 4, 5, 6, 4, 5, 6]),  # a text that goes in circles
        *((text, 4, None) for text in ([], [1], [1, 1], [1, 2, 3, 4], [1, 2, 1])),
    ],
)
def test_what_followed_is_proposed(text: list[int], most: int, proposed: list[int] | None) -> None:
    found = PromptLookup().propose(text, most)
    assert (None if found is None else found.token_ids) == proposed


@each_case("num_words", [2, 3, 8])
def test_as_good_as_looking_everywhere(num_words: int) -> None:
    generator = random.Random(num_words)
    text: list[int] = []
    grown = PromptLookup()
    for _ in range(200):
        text.append(generator.randrange(num_words) + 1_000_000)
        found, afresh = grown.propose(text, 4), PromptLookup().propose(text, 4)
        assert found == afresh
        best = 0
        for end in range(1, len(text)):
            length = 0
            while length < min(end, LONGEST_MATCH) and text[end - 1 - length] == text[-1 - length]:
                length += 1
            best = max(best, length)
        if found is None:
            assert best < SHORTEST_MATCH
        else:
            assert best >= found.match_length >= min(best, prompt_lookup.LONG_MATCH - 1) - 2


SIZE = 8


class CountingUp:
    """Drafts the numbers after a text's last one."""

    follows = False

    def __init__(self) -> None:
        self.num_positions = 400
        self.filled: list[tuple[int, int]] = []
        self.starts: list[int] = []
        self.on_draft: Callable[[], None] = lambda: None

    def fill(self, sequence: Sequence, start: int, end: int) -> None:
        assert end <= len(sequence.block_ids) * SIZE
        self.filled.append((start, end))

    def draft(self, rows: Ordered[DraftRow]) -> list[list[int]]:
        self.on_draft()
        for row in rows:
            num_tokens = len(row.sequence.token_ids)
            assert num_tokens + row.length <= len(row.sequence.block_ids) * SIZE
            self.starts.append(num_tokens - row.start)
        return [[row.sequence.token_ids[-1] + 1 + i for i in range(row.length)] for row in rows]


class Reading:
    """One sequence of a number of tokens, computed and in blocks."""

    def __init__(self, num_tokens: int, num_blocks: int = 64) -> None:
        self.drafter = CountingUp()
        self.cache = KVCache(num_blocks, SIZE)
        self.now_s = 0.0
        self.speculator = DraftModelSpeculator(
            self.drafter, self.cache, 4, clock=lambda: self.now_s
        )
        self.sequence = self.add(num_tokens)

    def add(self, num_tokens: int, *, first: int = 0) -> Sequence:
        token_ids = list(range(first, first + num_tokens))
        sequence = sequence_of(token_ids)
        assert self.cache.admit(sequence)
        sequence.num_computed_tokens = num_tokens - 1
        self.cache.register_computed(sequence)
        return sequence

    def step(self, came: list[int] | None = None) -> list[int]:
        """The drafts of the next step, all of which are accepted unless ``came`` differs."""
        sequence = self.sequence
        draft = self.speculator.drafts([sequence]).get(sequence, [])
        came = [*draft, sequence.token_ids[-1] + len(draft) + 1] if came is None else came
        assert self.cache.grow(sequence, len(sequence.token_ids) + len(came))
        self.speculator.record(sequence, came)
        sequence.token_ids += came
        sequence.num_computed_tokens += len(came)
        self.cache.register_computed(sequence)
        return draft


def test_a_prompt_is_read_and_then_only_what_is_new() -> None:
    bench = Reading(20)
    bench.drafter.on_draft = lambda: setattr(bench, "now_s", bench.now_s + 0.5)
    first = bench.step()
    assert first and first == list(range(20, 20 + len(first)))
    assert bench.drafter.filled == [(0, 19)]
    assert bench.speculator.take_drafting_s() == 0.5, "which is no part of a step"
    assert bench.speculator.take_drafting_s() == 0.0
    for _ in range(3):
        assert bench.step()
    assert bench.drafter.filled == [(0, 19)]
    assert bench.drafter.starts[0] == 1
    # The draft's own last token and the one that came with it.
    assert set(bench.drafter.starts[1:]) == {2}


def test_tokens_that_were_not_predicted_are_read_again() -> None:
    bench = Reading(20)
    bench.step()
    for came in ([99], None):
        bench.step(came=came or [bench.sequence.token_ids[-1] + 1, 7])  # the first was right
        assert len(bench.step()) >= 2
        assert bench.drafter.starts[-1] == 1


def test_long_prompts_are_taken_in_by_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_model, "READ_AT_ONCE", 30)
    bench = Reading(100)
    drafts = [bench.step(came=None if at > 3 else [5]) for at in range(5)]
    assert bench.drafter.filled[:3] == [(0, 30), (30, 60), (60, 90)]
    assert drafts[:3] == [[], [], []]
    assert drafts[4]
    monkeypatch.setattr(prompt_lookup, "INDEXED_AT_ONCE", 10)
    text, lookup = [*range(40), 3, 4, 5], PromptLookup()
    found = [lookup.propose(text, 2) for _ in range(6)]
    assert found[:4] == [None] * 4
    assert found[4] is not None and found[4].token_ids == [6, 7]


def test_drafts_that_have_no_room() -> None:
    bench = Reading(20)
    bench.drafter.num_positions = 24
    assert bench.step() == [], "no further than its own context"
    assert bench.drafter.filled == []
    bench = Reading(23, num_blocks=3)  # without a free block they are shorter
    drafts = bench.speculator.drafts([bench.sequence])
    assert [len(draft) for draft in drafts.values()] == [1]


def test_blocks_of_a_shared_prefix_are_read_once_unless_nobody_knows_them() -> None:
    bench = Reading(40)
    bench.step()
    second = bench.add(44)
    assert second.block_ids[:4] == bench.sequence.block_ids[:4]
    bench.sequence = second
    bench.step()
    assert bench.drafter.filled == [(0, 39), (32, 43)]
    bench = Reading(20)
    bench.step()
    bench.cache.release(bench.sequence)  # it is preempted
    bench.cache.release(bench.add(64 * SIZE, first=1000))
    assert bench.cache.admit(bench.sequence)
    bench.sequence.num_computed_tokens = len(bench.sequence.token_ids) - 1
    bench.cache.register_computed(bench.sequence)
    bench.step()
    assert [start for start, _ in bench.drafter.filled] == [0, 0]


def test_where_drafts_do_not_pay_some_are_tried_now_and_then() -> None:
    bench = Reading(20, num_blocks=64)
    steps = untried_step_time()
    for num_rows in (1, 2, 3, 4, 5):
        steps.record(num_rows, 0, 0.010 * num_rows)
    bench.speculator.weigh_by(steps)
    for _ in range(40):
        bench.speculator._acceptance.record(draft_model.OF_A_MODEL, [1], [2])
    drafts = [bench.step(came=[1]) for _ in range(draft_model.PROBE_STEPS + 2)]
    assert drafts[:60] == [[]] * 60
    assert [len(draft) for draft in drafts if draft] == [draft_model.PROBE_LENGTH]


def test_costs_count_each_token_of_the_longest_draft() -> None:
    costs = DraftCosts(untried_step_time())
    assert costs.ratio(3, 1) == pytest.approx(1 + 2 * (UNTRIED_ROW_SHARE + UNTRIED_DRAFT))
    for _ in range(10):
        costs.steps.record(1, 0, 0.010)
        costs.steps.record(3, 0, 0.012)
        costs.record_draft(1, 0.002)
    assert costs.ratio(3, 1) == pytest.approx(1.2 + 2 * 0.2, rel=0.05)
