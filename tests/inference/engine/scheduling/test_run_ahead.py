"""Steps launched before the last one is read, and several groups under way at once: the same
answers whatever happens meanwhile, work for every stage, and no sequence waits longer."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from inference.engine.scheduling.run_ahead import StepGroups
from inference.engine.step import Sampled, Schedule
from tests.cases import each_case
from tests.inference.engine.scheduling.fake_device import (
    ACTIONS,
    Client,
    FakeDevice,
    FakeStep,
    never_stops,
)


@settings(max_examples=3 * settings.default.max_examples)
@given(ACTIONS, st.integers(10, 20), st.integers(1, 6), st.integers(3, 30))
def test_any_order_of_events_gives_the_same_answers(
    actions: Any, num_blocks: int, max_running: int, prefill_tokens: int
) -> None:
    Client(
        num_blocks=num_blocks, max_running=max_running, prefill_tokens_per_step=prefill_tokens
    ).play(actions)


def test_one_step_ahead_where_the_pace_leaves_no_slot_to_who_waits() -> None:
    client = Client(max_running=64, target_step_s=0.1)
    running_limit = client.engine.running_limit
    assert running_limit < 64
    for _ in range(running_limit + 1):
        client.submit(never_stops(3, 12), 12)
    client.step(10)
    assert len(client.scheduler.running) == running_limit
    assert len(client.scheduler.waiting) == 1
    assert client.device.num_ahead >= 8
    client.drain()


@each_case("num_failures", [1, 3, 100])
def test_a_launch_ahead_that_raises_leaves_the_step_before_it_as_it_was(num_failures: int) -> None:
    """The device has no room for the first steps that are launched ahead."""

    class FailingAhead(FakeDevice):
        num_failed = 0

        def launch(self, schedule: Schedule, after: FakeStep | None = None) -> FakeStep:
            if after is not None and self.num_failed < num_failures:
                self.num_failed += 1
                raise MemoryError
            return super().launch(schedule, after)

    client = Client(device=FailingAhead())
    client.submit(never_stops(3, 12), 12)
    client.drain()
    assert client.num_steps == 12, "none is run twice"


def test_who_comes_waits_for_one_step_more() -> None:
    client = Client()
    client.submit([0, 1], 15)
    client.step(3)
    ahead = client.device.num_ahead
    client.submit([2, 1], 2)
    client.step()
    assert client.device.num_ahead == ahead, "nobody is launched past a prompt that may start"
    client.step()
    assert client.answers.tokens["s1"]
    while client.engine.stats().in_flight > 1:
        client.step()
    client.cancel(0)
    assert client.engine.stats().kv_blocks_used == 0, "though its row is launched"
    client.submit([2, 6, 8, 9], 3)
    client.drain()

    client = Client(num_blocks=12)  # who lacked blocks starts once they are free
    for num_tokens, max_tokens in ((4, 30), (28, 3), (16, 2)):
        client.submit(never_stops(num_tokens, max_tokens), max_tokens)
    client.drain()
    assert client.ended_in == {"s0": 30, "s1": 3, "s2": 5}, "one was launched in between"


class FakeStages(FakeDevice):
    """Fails some steps: as they begin, or when their rows come back."""

    def __init__(self, seed: int = 0, failing: float = 0.0, *, fails_whole: bool = False) -> None:
        """``fails_whole``: fails each step, one of whose sequences has ended meanwhile."""
        super().__init__()
        self.num_rows: list[int] = []
        """The number of rows of each step that began in a group."""
        self.under_way: list[FakeStep] = []
        self.most_under_way = 0
        self._random = random.Random(seed)
        self.failing, self._fails_whole = failing, fails_whole

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
        if self._fails_whole and len(live.sequences) < len(step.schedule.sequences):
            raise ValueError("a row of a sequence that has ended is at fault")
        sampled = self.read(step)
        self._may_fail(live)
        tokens = dict(zip(step.schedule.sampled, sampled.token_ids, strict=True))
        assert [s for s in tokens if s in live.sampled] == live.sampled
        return Sampled([tokens[s] for s in live.sampled], {}, {})

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
    st.integers(2, 4),
    st.sampled_from([0.0, 0.3]),
    st.fixed_dictionaries(
        {
            "num_blocks": st.integers(10, 20),
            "max_running": st.integers(1, 6),
            "prefill_tokens_per_step": st.integers(3, 30),
        }
    ),
)
def test_groups_give_the_same_answers_in_any_order_of_events(
    actions: Any, num_groups: int, failing: float, limits: Any
) -> None:
    stages = FakeStages(seed=limits["num_blocks"], failing=failing)
    grouped(stages, num_groups, **limits).play(actions)
    assert not stages.under_way


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
    client.step(12)
    assert set(stages.num_rows[-8:]) == shares
    assert stages.most_under_way == min(num_sequences, num_groups)
    client.drain()


@each_case("cancelled", range(4))
@each_case("fails_whole", [False, True])
def test_a_sequence_is_not_failed_for_another_that_has_left(
    cancelled: int, fails_whole: bool
) -> None:
    stages = FakeStages(fails_whole=fails_whole)
    client = grouped(stages, 2, num_blocks=100)
    for _ in range(4):
        client.submit(never_stops(3, 20), 20)
    client.step(6)
    if not fails_whole:
        stages.failing = 1.0
        client.step()
        stages.failing = 0.0
    client.cancel(cancelled)
    client.drain()
