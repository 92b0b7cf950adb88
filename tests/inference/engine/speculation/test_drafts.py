"""How many drafts are run: what they bring and cost; and the choice of where they come from."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from inference.engine.pace import StepPacer, StepTimeModel
from inference.engine.sequence import Sequence
from inference.engine.speculation.prompt_lookup import LookupSpeculator
from inference.engine.speculation.speculator import (
    ENGINE_GAIN,
    IDLE_STEPS,
    MOST_SEQUENCES,
    PRIORS,
    REST_STEPS,
    Acceptance,
    AutomaticSpeculator,
    Offer,
    best_length,
    match_class,
    most_drafts,
)
from tests.cases import each_case
from tests.inference.engine.asking import sequence_of


@dataclass(frozen=True)
class Device:
    """A step takes ``fixed_s``, ``row_s`` for each row and some time for each prompt token."""

    fixed_s: float
    row_s: float

    def ratio(self, num_rows: int, num_base_rows: int) -> float:
        return self.seconds(num_rows) / self.seconds(num_base_rows)

    def seconds(self, num_rows: int, num_tokens: int = 0) -> float:
        return self.fixed_s + num_rows * self.row_s + num_tokens * 0.0004


FIXED, STEEP = Device(0.020, 0.0002), Device(0.001, 0.010)


def paced(device: Device, rows: list[int], *, target_s: float | None = 0.1) -> StepPacer:
    """After steps of so many rows, and a prompt beside some of them."""
    pacer = StepPacer(256, 2048, target_s)
    for index, num_rows in enumerate(rows):
        num_tokens = 64 if index % 5 == 0 else 0
        step_s = device.seconds(num_rows, num_tokens)
        pacer.record(num_decode_rows=num_rows, num_prefill_tokens=num_tokens, step_s=step_s)
    return pacer


@each_case(
    ("num_rows", "candidates", "row_s", "most_rows", "expected"),
    [
        (1, [(8, 0.5)], 0.0, 128, 8),  # rows that cost nothing are all run
        (32, [(8, 0.6)] * 32, 10.0, 1024, 0),  # rows that cost as much as a step are not
        (1, [(8, 0.05)], 0.1, 128, 0),  # hopeless
        (1, [(15, 0.4)], 0.2, 128, 1),
        (1, [(15, 0.95)], 0.2, 128, 11),  # sure ones are longer
        (4, [(8, 1.0)] * 4, 0.0, 12, 2),  # a step holds so many rows
    ],
)
def test_how_many_are_run(
    num_rows: int, candidates: list[tuple[int, float]], row_s: float, most_rows: int, expected: int
) -> None:
    assert best_length(num_rows, candidates, Device(1.0, row_s), most_rows) == expected


def test_when_a_lone_sequence_is_drafted_for() -> None:
    for device, expected in ((FIXED, 15), (STEEP, 0)):
        costs = paced(device, [1, 2, 3, 5, 8, 4, 2] * 6, target_s=None).step_time
        assert costs.ratio(16, 1) == pytest.approx(device.ratio(16, 1), rel=0.15)
        assert best_length(1, [(15, 0.8)], costs, 128) == expected
    costs = paced(FIXED, [1] * 40).step_time
    assert best_length(1, [(8, 0.8)], costs, 128) > 0, "before a row has a price"
    slower = paced(STEEP, [1, 5] * 10 + [1] * 60).step_time
    assert best_length(1, [(8, 0.6)], slower, 128) == 0, "it was tried"
    pacer = paced(STEEP, [1, 5] * 10)
    assert best_length(1, [(8, 0.8)], pacer.step_time, 128) == 0
    for _ in range(3000):
        pacer.record(num_decode_rows=1, num_prefill_tokens=0, step_s=STEEP.seconds(1))
    assert best_length(1, [(8, 0.8)], pacer.step_time, 128) > 0, "tried again after many steps"
    pacer = paced(FIXED, [1, 9] * 10)
    before = pacer.step_time.ratio(9, 1)
    for _ in range(40):  # a machine that slows down does not make rows dear
        pacer.record(num_decode_rows=1, num_prefill_tokens=0, step_s=1.5 * FIXED.seconds(1))
    assert pacer.step_time.ratio(9, 1) == pytest.approx(before, rel=0.2)


def test_acceptance_follows_what_comes_and_the_next_sequence_begins_there() -> None:
    engine = Acceptance()
    own = Acceptance(engine)
    for _ in range(50):
        own.record(2, [1, 2, 3], [1, 9, 9])
    assert 0.4 < own.rates[2] < 0.6
    assert own.rates[0] == PRIORS[0]
    assert abs(engine.rates[2] - PRIORS[2]) < 100 * ENGINE_GAIN
    assert Acceptance(engine).rates[2] == engine.rates[2] < PRIORS[2]
    classes = [match_class(length) for length in (2, 3, 4, 7, 8, 15, 16, 32)]
    assert classes == [0, 0, 1, 1, 2, 2, 3, 3], "longer matches are surer"
    for max_tokens, min_tokens, wanted in ((5, 0, 4), (1, 0, 0), (9, 3, 0)):
        sequence = sequence_of([1, 2], max_tokens=max_tokens, min_tokens=min_tokens)
        assert most_drafts(sequence) == wanted


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
    many = [sequence_of([1, 2, 1, 2, 1, 2]) for _ in range(MOST_SEQUENCES + 1)]
    speculator = LookupSpeculator()
    assert speculator.drafts(many) == {}
    assert not any(sequence.drafting for sequence in many), "they are not even looked at"
    assert speculator.drafts(many[:1]) != {}


STEP_S = 0.1


def origin(name: str, worth: float) -> Any:
    """Offers two tokens, always of the same worth."""

    def offer(sequences: list[Sequence]) -> Offer | None:
        made.num_asked += 1
        drafts = dict.fromkeys(sequences, [len(name)] * 2)
        return Offer(made.worth, made.is_trial, lambda: drafts) if made.worth else None

    def drafts(sequences: list[Sequence]) -> dict[Sequence, list[int]]:
        offered = offer(sequences)
        return {} if offered is None else offered.make()

    made = SimpleNamespace(name=name, worth=worth, is_trial=False, num_asked=0, sampled=[])
    made.status, made.offer, made.drafts = "", offer, drafts
    made.expects_drafts = lambda sequences: offer(sequences) is not None
    made.record = lambda sequence, sampled: made.sampled.append(sampled)
    made.weigh_by, made.take_drafting_s = lambda step_time: None, lambda: 0.25
    return made


class Bench:
    def __init__(self, lookup: float, predicted: float, *, following_s: float = 0.0) -> None:
        self.lookup, self.predicted = origin("lookup", lookup), origin("predicted", predicted)
        self.follower: Any = SimpleNamespace(follows=True, following_s=following_s)
        self.follower.rest = lambda: setattr(self.follower, "follows", False)
        self.follower.resume = lambda: setattr(self.follower, "follows", True)
        self.speculator = AutomaticSpeculator(self.lookup, self.predicted, self.follower)
        self.speculator.weigh_by(StepTimeModel(row_s=STEP_S, token_s=STEP_S))
        self.sequence = sequence_of([1, 2, 3])

    def step(self) -> str:
        """Returns the chosen origin's name; empty: none. Half of its drafts are right."""
        draft = self.speculator.drafts([self.sequence]).get(self.sequence)
        self.speculator.record(self.sequence, [7] if draft is None else [draft[0], 7])
        return "" if draft is None else {6: "lookup", 9: "predicted"}[draft[0]]


def test_the_origin_that_is_worth_more_drafts() -> None:
    for worth, name in (
        ((1.5, 1.2), "lookup"),
        ((1.2, 1.5), "predicted"),
        ((0.0, 1.1), "predicted"),
    ):
        assert Bench(*worth).step() == name
    assert Bench(0.0, 0.0).step() == ""
    bench = Bench(3.0, 0.9)
    bench.predicted.is_trial = True
    assert bench.step() == "predicted", "a trial comes first"
    bench = Bench(1.5, 1.2)
    bench.step()
    assert bench.lookup.sampled == bench.predicted.sampled == [[6, 7]], "both learn"
    assert bench.speculator.take_drafting_s() == 0.5


def test_a_predictor_that_does_not_pay_rests_and_is_tried_again() -> None:
    bench = Bench(0.0, 0.0)
    for _ in range(IDLE_STEPS):
        assert bench.follower.follows
        assert bench.step() == ""
    assert not bench.follower.follows
    bench.predicted.worth = 2.0
    num_asked = bench.predicted.num_asked
    for _ in range(REST_STEPS - 1):
        assert bench.step() == ""
    assert bench.predicted.num_asked == num_asked
    assert bench.step() == "predicted"
    assert bench.follower.follows
    bench = Bench(3.0, 1.2)  # steps of prompt lookup alone let it rest
    assert {bench.step() for _ in range(IDLE_STEPS)} == {"lookup"}
    assert not bench.follower.follows
    # It rests where following costs more than drafts bring.
    cheap, dear = (Bench(0.0, 1.2, following_s=part * STEP_S) for part in (0.1, 0.3))
    for _ in range(2 * IDLE_STEPS):
        cheap.step()
        dear.step()
    assert (cheap.follower.follows, dear.follower.follows) == (True, False)
