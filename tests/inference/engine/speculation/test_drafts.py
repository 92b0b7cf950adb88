"""How many drafts are run: what they bring and cost; the choice of where they come from; what is
proposed after a text that repeats itself; and what a draft model reads and when: behind the
sequence, bounded, and only where it pays."""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from inference.engine.kv_cache import KVCache
from inference.engine.pace import UNTRIED_ROW_SHARE, StepPacer, StepTimeModel, untried_step_time
from inference.engine.sequence import Sequence
from inference.engine.speculation import draft_model, prompt_lookup
from inference.engine.speculation import speculator as drafting
from inference.engine.speculation.prompt_lookup import LookupSpeculator, PromptLookup
from tests.cases import each_case
from tests.inference.engine.conftest import sequence_of


@dataclass(frozen=True)
class Device:
    """A step takes ``fixed_s``, ``row_s`` for each row and some time for each prompt token."""

    fixed_s: float
    row_s: float

    def ratio(self, num_rows: int, num_base_rows: int) -> float:
        return self.seconds(num_rows) / self.seconds(num_base_rows)

    def seconds(self, num_rows: int, num_tokens: int = 0) -> float:
        return self.fixed_s + num_rows * self.row_s + num_tokens * 0.0004


STEP_S = 0.1
FIXED, STEEP = Device(0.020, 0.0002), Device(0.001, 0.010)


def paced(device: Device, rows: list[int], *, target_s: float | None = 0.1) -> StepPacer:
    """After steps of so many rows, and a prompt beside some of them."""
    pacer = StepPacer(256, 2048, target_s)
    for index, num_rows in enumerate(rows):
        num_tokens = 64 if index % 5 == 0 else 0
        pacer.record(
            num_decode_rows=num_rows,
            num_prefill_tokens=num_tokens,
            step_s=device.seconds(num_rows, num_tokens),
        )
    return pacer


def test_how_many_are_run() -> None:
    for num_rows, candidates, row_s, expected in (
        (1, [(8, 0.5)], 0.0, 8),  # rows that cost nothing are all run
        (8, [(8, 0.6)] * 8, 10.0, 0),  # rows that cost as much as a step are not
        (1, [(8, 0.05)], 0.1, 0),  # hopeless
        (1, [(15, 0.4)], 0.2, 1),
        (1, [(15, 0.95)], 0.2, 11),  # sure ones are longer
        (32, [(8, 1.0)] * 32, 0.0, 3),  # a step holds so many rows
    ):
        costs = Device(1.0, row_s)
        length, worth = drafting.best_length(num_rows, candidates, costs)
        assert length == expected and (worth > drafting.WORTH) == bool(expected)


def test_when_a_lone_sequence_is_drafted_for() -> None:
    def best(pacer: StepPacer, candidate: tuple[int, float] = (8, 0.8)) -> int:
        return drafting.best_length(1, [candidate], pacer.step_time)[0]

    for device, expected in ((FIXED, 15), (STEEP, 0)):
        pacer = paced(device, [1, 2, 3, 5, 8, 4, 2] * 6, target_s=None)
        assert pacer.step_time.ratio(16, 1) == pytest.approx(device.ratio(16, 1), rel=0.15)
        assert best(pacer, (15, 0.8)) == expected
    assert best(paced(FIXED, [1] * 40)) > 0, "before a row has a price"
    assert best(paced(STEEP, [1, 5] * 10 + [1] * 60), (8, 0.6)) == 0, "it was tried"
    pacer = paced(STEEP, [1, 5] * 10)
    assert best(pacer) == 0
    for _ in range(3000):
        pacer.record(num_decode_rows=1, num_prefill_tokens=0, step_s=STEEP.seconds(1))
    assert best(pacer) > 0, "tried again after many steps"
    pacer = paced(FIXED, [1, 9] * 10)
    before = pacer.step_time.ratio(9, 1)
    for _ in range(40):  # a machine that slows down does not make rows dear
        pacer.record(num_decode_rows=1, num_prefill_tokens=0, step_s=1.5 * FIXED.seconds(1))
    assert pacer.step_time.ratio(9, 1) == pytest.approx(before, rel=0.2)


def test_acceptance_follows_what_comes_and_the_next_sequence_begins_there() -> None:
    engine = drafting.Acceptance()
    own = drafting.Acceptance(engine)
    for _ in range(50):
        own.record(2, [1, 2, 3], [1, 9, 9])
    assert 0.4 < own.rates[2] < 0.6
    assert own.rates[0] == drafting.PRIORS[0]
    assert abs(engine.rates[2] - drafting.PRIORS[2]) < 100 * drafting.ENGINE_GAIN
    assert drafting.Acceptance(engine).rates[2] == engine.rates[2] < drafting.PRIORS[2]
    classes = [drafting.match_class(length) for length in (2, 3, 4, 7, 8, 15, 16, 32)]
    assert classes == [0, 0, 1, 1, 2, 2, 3, 3], "longer matches are surer"
    for max_tokens, min_tokens, wanted in ((5, 0, 4), (1, 0, 0), (9, 3, 0)):
        sequence = sequence_of([1, 2], max_tokens=max_tokens, min_tokens=min_tokens)
        assert drafting.most_drafts(sequence) == wanted


def test_a_sequence_that_begins_to_repeat_is_drafted_for() -> None:
    speculator = LookupSpeculator()
    speculator.weigh_by(paced(Device(0.0075, 0.0025), [1, 9] * 10).step_time)
    sequence, num_drafts = sequence_of([1, 2]), []
    varied = [(1, 2, 100 + step)[step % 3] for step in range(60)]
    for token_id in [*varied, *varied[8:38]]:
        num_drafts.append(len(speculator.drafts([sequence])))
        speculator.record(sequence, [token_id])
        sequence.token_ids.append(token_id)
    assert any(num_drafts[-20:])
    many = [sequence_of([1, 2, 1, 2, 1, 2]) for _ in range(drafting.MOST_SEQUENCES + 1)]
    speculator = LookupSpeculator()
    assert speculator.drafts(many) == {}
    assert not any(sequence.drafting for sequence in many), "they are not even looked at"
    assert speculator.drafts(many[:1]) != {}


def origin(token_id: int, worth: float) -> Any:
    """Offers two tokens, always of the same worth."""

    def offer(sequences: list[Sequence]) -> drafting.Offer | None:
        drafts = dict.fromkeys(sequences, [token_id] * 2)
        return drafting.Offer(made.worth, made.is_trial, lambda: drafts) if made.worth else None

    made = Mock(worth=worth, is_trial=False, status="")
    made.offer.side_effect = offer
    made.take_drafting_s.return_value = 0.25
    return made


class Bench:
    def __init__(self, lookup: float, predicted: float, *, following_s: float = 0.0) -> None:
        self.lookup, self.predicted = origin(6, lookup), origin(9, predicted)
        self.follower: Any = SimpleNamespace(follows=True, following_s=following_s)
        self.follower.rest = lambda: setattr(self.follower, "follows", False)
        self.follower.resume = lambda: setattr(self.follower, "follows", True)
        self.speculator = drafting.AutomaticSpeculator(self.lookup, self.predicted, self.follower)
        self.speculator.weigh_by(StepTimeModel(row_s=STEP_S, token_s=STEP_S))
        self.sequence = sequence_of([1, 2, 3])

    def step(self) -> str:
        """Returns the chosen origin's name; empty: none. Half of its drafts are right."""
        draft = self.speculator.drafts([self.sequence]).get(self.sequence)
        self.speculator.record(self.sequence, [7] if draft is None else [draft[0], 7])
        return "" if draft is None else {6: "lookup", 9: "predicted"}[draft[0]]


def test_the_origin_that_is_worth_more_drafts() -> None:
    for worth, name in (
        *(((1.5, 1.2), "lookup"), ((1.2, 1.5), "predicted")),
        *(((0.0, 1.1), "predicted"), ((0.0, 0.0), "")),
    ):
        assert Bench(*worth).step() == name
    bench = Bench(3.0, 0.9)
    bench.predicted.is_trial = True
    assert bench.step() == "predicted", "a trial comes first"
    bench = Bench(1.5, 1.2)
    bench.step()
    for one in (bench.lookup, bench.predicted):  # both learn
        one.record.assert_called_once_with(bench.sequence, [6, 7])
    assert bench.speculator.take_drafting_s() == 0.5


def test_a_predictor_that_does_not_pay_rests_and_is_tried_again() -> None:
    bench = Bench(0.0, 0.0)
    for _ in range(drafting.IDLE_STEPS):
        assert bench.follower.follows
        assert bench.step() == ""
    assert not bench.follower.follows
    bench.predicted.worth = 2.0
    num_asked = bench.predicted.offer.call_count
    for _ in range(drafting.REST_STEPS - 1):
        assert bench.step() == ""
    assert bench.predicted.offer.call_count == num_asked
    assert bench.step() == "predicted"
    assert bench.follower.follows
    bench = Bench(3.0, 1.2)  # steps of prompt lookup alone let it rest
    assert {bench.step() for _ in range(drafting.IDLE_STEPS)} == {"lookup"}
    assert not bench.follower.follows
    # It rests where following costs more than drafts bring.
    cheap, dear = (Bench(0.0, 1.2, following_s=part * STEP_S) for part in (0.1, 0.3))
    for _ in range(2 * drafting.IDLE_STEPS):
        cheap.step()
        dear.step()
    assert (cheap.follower.follows, dear.follower.follows) == (True, False)


def test_what_followed_is_proposed() -> None:
    for text, most, proposed in (
        ([5, 1, 2, 3, 4, 9, 9, 1, 2], 3, [3, 4, 9]),
        ([7, 1, 2, 30, 8, 1, 2, 40, 7, 1, 2], 1, [30]),  # the longest match wins over the last
        ([1, 2, 30, 9, 1, 2, 40, 8, 1, 2], 1, [40]),  # the last of equals
        ([4, 5, 6, 4, 5, 6, 4], 8, [5, 6, 4, 5, 6, 4, 5, 6]),  # a text that goes in circles
        *((text, 4, None) for text in ([], [1], [1, 1], [1, 2, 3, 4], [1, 2, 1])),
    ):
        found = PromptLookup().propose(text, most)
        assert (None if found is None else found.token_ids) == proposed


@each_case("num_words", [2, 3, 8])
def test_as_good_as_looking_everywhere(num_words: int) -> None:
    generator, text, grown = random.Random(num_words), list[int](), PromptLookup()
    for _ in range(200):
        text.append(generator.randrange(num_words) + 1_000_000)
        found = grown.propose(text, 4)
        assert found == PromptLookup().propose(text, 4)
        best = 0
        for end in range(1, len(text)):
            length = 0
            longest = min(end, prompt_lookup.LONGEST_MATCH)
            while length < longest and text[end - 1 - length] == text[-1 - length]:
                length += 1
            best = max(best, length)
        if found is None:
            assert best < prompt_lookup.SHORTEST_MATCH
        else:
            assert best >= found.match_length >= min(best, prompt_lookup.LONG_MATCH - 1) - 2


SIZE = 8


class CountingUp:
    """Drafts the numbers after a text's last one."""

    follows = False
    num_positions = 400
    on_draft: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self) -> None:
        self.filled: list[tuple[int, int]] = []
        self.starts: list[int] = []

    def fill(self, sequence: Sequence, start: int, end: int) -> None:
        assert end <= len(sequence.block_ids) * SIZE
        self.filled.append((start, end))

    def draft(self, rows: Ordered[draft_model.DraftRow]) -> list[list[int]]:
        self.on_draft()
        for row in rows:
            num_tokens = len(row.sequence.token_ids)
            assert num_tokens + row.length <= len(row.sequence.block_ids) * SIZE
            self.starts.append(num_tokens - row.start)
        return [[row.sequence.token_ids[-1] + 1 + i for i in range(row.length)] for row in rows]


class Reading:
    """One sequence of a number of tokens, computed and in blocks."""

    def __init__(self, num_tokens: int, num_blocks: int = 64) -> None:
        self.drafter, self.cache, self.now_s = CountingUp(), KVCache(num_blocks, SIZE), 0.0
        self.speculator = draft_model.DraftModelSpeculator(
            self.drafter, self.cache, 4, clock=lambda: self.now_s
        )
        self.sequence = self.add(num_tokens)

    def add(self, num_tokens: int, *, first: int = 0) -> Sequence:
        sequence = sequence_of(range(first, first + num_tokens))
        assert self.cache.admit(sequence)
        return self.computed(sequence)

    def computed(self, sequence: Sequence) -> Sequence:
        sequence.num_computed_tokens = len(sequence.token_ids) - 1
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
        self.computed(sequence)
        return draft


def test_a_prompt_is_read_and_then_only_what_is_new_or_was_not_predicted() -> None:
    bench = Reading(20)
    bench.drafter.on_draft = lambda: setattr(bench, "now_s", bench.now_s + 0.5)
    first = bench.step()
    assert first and first == list(range(20, 20 + len(first)))
    assert bench.speculator.take_drafting_s() == 0.5, "which is no part of a step"
    assert bench.speculator.take_drafting_s() == 0.0
    for _ in range(3):
        assert bench.step()
    assert bench.drafter.filled == [(0, 19)]
    assert bench.drafter.starts[0] == 1
    # The draft's own last token and the one that came with it.
    assert set(bench.drafter.starts[1:]) == {2}
    for came in ([99], None):
        bench.step(came=came or [bench.sequence.token_ids[-1] + 1, 7])  # the first was right
        assert len(bench.step()) >= 2
        assert bench.drafter.starts[-1] == 1


def test_long_prompts_are_taken_in_by_parts_and_drafts_end_where_there_is_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(draft_model, "READ_AT_ONCE", 30)
    bench = Reading(100)
    drafts = [bench.step(came=None if at > 3 else [5]) for at in range(5)]
    assert bench.drafter.filled[:3] == [(0, 30), (30, 60), (60, 90)]
    assert drafts[:3] == [[], [], []] and drafts[4]
    monkeypatch.setattr(prompt_lookup, "INDEXED_AT_ONCE", 10)
    text, lookup = [*range(40), 3, 4, 5], PromptLookup()
    found = [lookup.propose(text, 2) for _ in range(6)]
    assert found[:4] == [None] * 4
    assert found[4] is not None and found[4].token_ids == [6, 7]
    bench = Reading(20)
    bench.drafter.num_positions = 24
    assert bench.step() == [], "no further than its own context"
    assert bench.drafter.filled == []
    bench = Reading(23, num_blocks=3)  # without a free block they are shorter
    (draft,) = bench.speculator.drafts([bench.sequence]).values()
    assert len(draft) == 1


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
    bench.computed(bench.sequence)
    bench.step()
    assert [start for start, _ in bench.drafter.filled] == [0, 0]


def test_where_drafts_do_not_pay_some_are_tried_now_and_then() -> None:
    bench, steps = Reading(20), untried_step_time()
    for num_rows in (1, 2, 3, 4, 5):
        steps.record(num_rows, 0, 0.010 * num_rows)
    bench.speculator.weigh_by(steps)
    for _ in range(40):
        bench.speculator._acceptance.record(draft_model.OF_A_MODEL, [1], [2])
    drafts = [bench.step(came=[1]) for _ in range(draft_model.PROBE_STEPS + 2)]
    assert drafts[:60] == [[]] * 60
    assert [len(draft) for draft in drafts if draft] == [draft_model.PROBE_LENGTH]
    # Each token of the longest draft costs.
    costs = draft_model.DraftCosts(untried_step_time())
    assert costs.ratio(3, 1) == pytest.approx(
        1 + 2 * (UNTRIED_ROW_SHARE + draft_model.UNTRIED_DRAFT)
    )
    for _ in range(10):
        costs.steps.record(1, 0, 0.010)
        costs.steps.record(3, 0, 0.012)
        costs.record_draft(1, 0.002)
    assert costs.ratio(3, 1) == pytest.approx(1.2 + 2 * 0.2, rel=0.05)
