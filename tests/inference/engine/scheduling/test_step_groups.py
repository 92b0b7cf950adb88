"""Several groups under way at once: the same answers whatever happens, work for every stage."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from inference.engine.scheduling.run_ahead import StepGroups
from inference.engine.step import Sampled, Schedule
from tests.cases import each_case
from tests.inference.engine.scheduling.fake_device import FakeDevice, FakeStep
from tests.inference.engine.scheduling.test_run_ahead import ACTIONS, Client, never_stops


class FakeStages(FakeDevice):
    """Fails some steps: as they begin, or when their rows come back."""

    def __init__(self, seed: int = 0, failing: float = 0.0) -> None:
        super().__init__()
        self.num_rows: list[int] = []
        """The number of rows of each step that began in a group."""
        self.under_way: list[FakeStep] = []
        self.most_under_way = 0
        self._random = random.Random(seed)
        self.failing = failing

    def begin(self, schedule: Schedule) -> FakeStep:
        self._may_fail(schedule)
        step = self.launch(schedule)
        self.num_rows.append(len(schedule.sequences))
        self.under_way.append(step)
        self.most_under_way = max(self.most_under_way, len(self.under_way))
        busy = [s for one in self.under_way for s in one.schedule.sequences]
        live = [s for s in busy if s.state.value != "ended"]
        assert len(live) == len(set(live)), "a sequence is in one step at a time"
        return step

    def finish(self, step: FakeStep, live: Schedule) -> Sampled:
        self.under_way.remove(step)
        sampled = self.read(step)
        self._may_fail(live)
        of_all = zip(step.schedule.sampled, sampled.token_ids, strict=True)
        assert [s for s, _ in of_all if s in live.sampled] == live.sampled
        of_all = zip(step.schedule.sampled, sampled.token_ids, strict=True)
        return Sampled([token for s, token in of_all if s in live.sampled], {}, {})

    def give_up(self, step: FakeStep) -> None:
        self.under_way.remove(step)

    def _may_fail(self, schedule: Schedule) -> None:
        """Raises now and then. A step that could not be divided does not fail: its sequence would
        fail too."""
        if len(schedule.sequences) > 1 and self._random.random() < self.failing:
            raise ValueError("a stage at fault")


def grouped(stages: FakeStages, num_groups: int, **limits: Any) -> Client:
    return Client(device=stages, steps_ahead=partial(StepGroups, num_groups=num_groups), **limits)


@given(
    ACTIONS,
    st.integers(10, 20),
    st.integers(1, 6),
    st.integers(3, 30),
    st.integers(2, 4),
    st.sampled_from([0.0, 0.3]),
)
def test_any_order_of_events_gives_the_same_answers(
    actions: Any,
    num_blocks: int,
    max_running: int,
    prefill_tokens: int,
    num_groups: int,
    failing: float,
) -> None:
    stages = FakeStages(seed=num_blocks, failing=failing)
    client = grouped(
        stages,
        num_groups,
        num_blocks=num_blocks,
        max_running=max_running,
        prefill_tokens_per_step=prefill_tokens,
    )
    client.play(actions)


@each_case(
    ("num_sequences", "num_groups", "shares"),
    [(8, 2, {4}), (7, 2, {3, 4}), (8, 3, {2, 3}), (1, 2, {1}), (2, 4, {1})],
)
def test_those_that_decode_are_shared_evenly(
    num_sequences: int, num_groups: int, shares: set[int]
) -> None:
    stages = FakeStages()
    client = grouped(stages, num_groups, num_blocks=100)
    for _ in range(num_sequences):
        client.submit(never_stops(3, 30), 30)
    for _ in range(12):
        client.step()
    assert set(stages.num_rows[-8:]) == shares
    assert stages.most_under_way == min(num_sequences, num_groups)
    client.drain()
    client.check()


@each_case("cancelled", range(4))
def test_a_sequence_is_not_failed_for_another_that_has_left(cancelled: int) -> None:
    stages = FakeStages()
    client = grouped(stages, 2, num_blocks=100)
    for _ in range(4):
        client.submit(never_stops(3, 20), 20)
    for _ in range(6):
        client.step()
    stages.failing = 1.0
    client.step()
    stages.failing = 0.0
    client.cancel(cancelled)
    client.drain()
    client.check()


def test_who_is_under_way_when_cancelled_is_computed_for_nobody() -> None:
    stages = FakeStages()
    client = grouped(stages, 2, num_blocks=12)
    for _ in range(3):
        client.submit(never_stops(3, 20), 20)
    for _ in range(6):
        client.step()
    assert len(stages.under_way) == 1, "the other has just been read"
    num_live = len({s.sequence_id for s in stages.under_way[0].schedule.sequences})
    for _ in range(num_live + 1):
        client.cancel(0)
    for _ in range(2):
        client.submit(never_stops(8, 9), 9)
    client.drain()
    client.check()
    assert not stages.under_way


@each_case("cancelled", range(4))
def test_a_sequence_is_not_failed_for_rows_that_its_step_has_lost(cancelled: int) -> None:

    class FailingWhole(FakeStages):
        def finish(self, step: FakeStep, live: Schedule) -> Sampled:
            if len(live.sequences) < len(step.schedule.sequences):
                self.under_way.remove(step)
                raise ValueError("a row of a sequence that has ended is at fault")
            return super().finish(step, live)

    client = grouped(FailingWhole(), 2, num_blocks=100)
    for _ in range(4):
        client.submit(never_stops(3, 20), 20)
    for _ in range(6):
        client.step()
    client.cancel(cancelled)
    client.drain()
    client.check()
