"""The choice of where drafts come from, step by step."""

from __future__ import annotations

from inference.engine.scheduling.pace import StepTimeModel
from inference.engine.sequence import Sequence
from inference.engine.speculation.speculator import (
    IDLE_STEPS,
    REST_STEPS,
    STATUS_STEPS,
    AutomaticSpeculator,
    Offer,
)
from tests.inference.engine.speculation.test_draft_length import sequence_of

STEP_S = 0.1


class FixedOrigin:
    """Offers two tokens, always of the same worth."""

    status = ""

    def __init__(self, name: str, worth: float = 0.0, *, is_trial: bool = False) -> None:
        self.name = name
        self.worth = worth
        self.is_trial = is_trial
        self.num_asked = 0
        self.sampled: list[list[int]] = []

    def offer(self, sequences: list[Sequence]) -> Offer | None:
        self.num_asked += 1
        if not self.worth:
            return None
        return Offer(
            self.worth, self.is_trial, lambda: dict.fromkeys(sequences, [len(self.name)] * 2)
        )

    def drafts(self, sequences: list[Sequence]) -> dict[Sequence, list[int]]:
        offer = self.offer(sequences)
        return {} if offer is None else offer.make()

    def expects_drafts(self, sequences: list[Sequence]) -> bool:
        return self.offer(sequences) is not None

    def record(self, sequence: Sequence, sampled: list[int]) -> None:
        self.sampled.append(sampled)

    def weigh_by(self, step_time: StepTimeModel) -> None:
        """Its worth is fixed."""

    def take_drafting_s(self) -> float:
        return 0.25


class Follower:
    def __init__(self, following_s: float) -> None:
        self.following_s = following_s
        self.follows = True

    def rest(self) -> None:
        self.follows = False

    def resume(self) -> None:
        self.follows = True


class Bench:
    def __init__(self, lookup: float, predicted: float, *, following_s: float = 0.0) -> None:
        self.lookup = FixedOrigin("lookup", lookup)
        self.predicted = FixedOrigin("predicted", predicted)
        self.follower = Follower(following_s)
        self.speculator = AutomaticSpeculator(self.lookup, self.predicted, self.follower)
        steps = StepTimeModel(row_s=STEP_S, token_s=STEP_S)
        self.speculator.weigh_by(steps)
        self.sequence = sequence_of("a", [1, 2, 3])

    def step(self) -> str:
        """Returns the chosen origin's name; empty: none. Half of its drafts are right."""
        draft = self.speculator.drafts([self.sequence]).get(self.sequence)
        self.speculator.record(self.sequence, [7] if draft is None else [draft[0], 7])
        if draft is None:
            return ""
        return next(one.name for one in (self.lookup, self.predicted) if len(one.name) == draft[0])


def test_the_origin_that_is_worth_more_drafts() -> None:
    assert Bench(1.5, 1.2).step() == "lookup"
    assert Bench(1.2, 1.5).step() == "predicted"
    assert Bench(0.0, 1.1).step() == "predicted"
    assert Bench(0.0, 0.0).step() == ""


def test_a_trial_comes_first() -> None:
    bench = Bench(3.0, 0.9)
    bench.predicted.is_trial = True
    assert bench.step() == "predicted"


def test_both_learn_from_every_step() -> None:
    bench = Bench(1.5, 1.2)
    bench.step()
    assert bench.lookup.sampled == bench.predicted.sampled == [[6, 7]]
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


def test_steps_of_prompt_lookup_alone_let_it_rest() -> None:
    bench = Bench(3.0, 1.2)
    for _ in range(IDLE_STEPS):
        assert bench.step() == "lookup"
    assert not bench.follower.follows
    assert bench.step() == "lookup"


def test_it_rests_where_following_costs_more_than_drafts_bring() -> None:
    cheap, dear = (Bench(0.0, 1.2, following_s=part * STEP_S) for part in (0.1, 0.3))
    for _ in range(2 * IDLE_STEPS):
        cheap.step()
        dear.step()
    assert cheap.follower.follows
    assert not dear.follower.follows


def test_the_status_names_what_was_chosen() -> None:
    bench = Bench(1.5, 1.2)
    assert bench.speculator.status == ""
    for number in range(STATUS_STEPS + 1):
        bench.lookup.worth = 1.5 if number % 2 else 0.0
        bench.predicted.worth = 1.2 if number % 4 == 0 else 0.0
        bench.step()
    assert bench.speculator.status == (
        "of the last steps, lookup in 50 % (50 % right), predicted in 20 % (50 % right), "
        "none in 20 %"
    )
