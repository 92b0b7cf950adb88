"""Steps launched before the last one is read, and several groups under way at once: the same
answers whatever happens meanwhile, work for every stage, and no sequence waits longer."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from inference.engine.engine import Engine
from inference.engine.errors import StepFault
from inference.engine.faults import recover
from inference.engine.kv_cache import KVCache
from inference.engine.run_ahead import RunAhead, StepGroups
from inference.engine.scheduler import EngineLimits, Scheduler
from inference.engine.sequence import Sequence
from inference.engine.step import RowEnd, Sampled, Schedule
from inference.engine.waiting_queue import SchedulerLimits
from inference.protocol.engine import CancelSequence
from tests.cases import each_case
from tests.inference.engine.conftest import Answers, submit

VOCAB_SIZE = 50
BLOCK_TOKENS = 4


def next_token(context: list[int]) -> int:
    return random.Random(zlib.crc32(bytes(context))).randrange(VOCAB_SIZE)


@dataclass(slots=True)
class FakeStep:
    schedule: Schedule
    compute: Callable[[], list[int]]
    token_ids: list[int] = field(default_factory=list)
    """The tokens of the sampled sequences, once the step is computed."""


class FakeDevice:
    """Works by itself: a launched step is computed only when it or a later one is read, in order.
    Its memory is one token a slot, so that a row that reads another sequence's block, or one that
    was overwritten, answers wrongly. Launches ``is_settled`` sequences ahead: those whose first
    token is even. Fails some steps of groups: as they begin, or when their rows come back."""

    def __init__(self, seed: int = 0, failing: float = 0.0, *, fails_whole: bool = False) -> None:
        """``fails_whole``: fails each step, one of whose sequences has ended meanwhile."""
        self._memory: dict[int, int] = {}
        self._queue: list[FakeStep] = []
        self.now_s, self.step_s = 0.0, 0.0
        self.not_numbers: set[str] = set()
        """Sequences whose rows fail."""
        self.forgotten: list[str] = []
        self.num_ahead, self.num_failures_ahead = 0, 0
        self.num_rows: list[int] = []
        """The number of rows of each step that began in a group."""
        self.under_way: list[FakeStep] = []
        self.most_under_way = 0
        self._random, self.failing, self._fails_whole = random.Random(seed), failing, fails_whole

    def execute(self, schedule: Schedule) -> Sampled:
        return self.read(self.launch(schedule))

    def launch(self, schedule: Schedule, after: FakeStep | None = None) -> FakeStep:
        if after is not None:
            if self.num_failures_ahead:
                self.num_failures_ahead -= 1
                raise MemoryError
            assert after.schedule.num_scored_tokens == 0
            assert all(map(self.is_settled, after.schedule.sampled))
            self.num_ahead += 1
        rows = [self._decode_row(s, after) for s in schedule.decodes]
        for chunk in schedule.prefills:
            tokens = chunk.sequence.token_ids[chunk.start : chunk.end]
            row = self._row(chunk.sequence, chunk.end, chunk.start, lambda tokens=tokens: tokens)
            rows.append(row if chunk.is_last else lambda row=row: (row(), [])[1])
        step = FakeStep(schedule, lambda: [token for row in rows for token in row()])
        self._queue.append(step)
        return step

    def read(self, step: FakeStep) -> Sampled:
        while step in self._queue:
            first = self._queue.pop(0)
            first.token_ids = first.compute()
            self.now_s += self.step_s
        rows = enumerate(step.schedule.sampled)
        failed = {
            row: RowEnd.of_numbers(1) for row, one in rows if one.sequence_id in self.not_numbers
        }
        return Sampled(list(step.token_ids), failed, {})

    def is_settled(self, sequence: Sequence) -> bool:
        return sequence.token_ids[0] % 2 == 0

    def recover(self, error: Exception) -> StepFault:
        return recover(error, "cpu")

    def forget(self, sequence: Sequence) -> None:
        self.forgotten.append(sequence.sequence_id)

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

    def _decode_row(self, sequence: Sequence, after: FakeStep | None) -> Callable[[], list[int]]:
        num_tokens = len(sequence.token_ids)
        if after is None:
            last = sequence.token_ids[-1]
            return self._row(sequence, num_tokens, num_tokens - 1, lambda: [last])
        row = after.schedule.sampled.index(sequence)
        return self._row(sequence, num_tokens + 1, num_tokens, lambda: [after.token_ids[row]])

    def _row(
        self, sequence: Sequence, end: int, start: int, tokens: Callable[[], list[int]]
    ) -> Callable[[], list[int]]:
        size = BLOCK_TOKENS
        slots = [sequence.block_ids[p // size] * size + p % size for p in range(end)]

        def compute() -> list[int]:
            for slot, token in zip(slots[start:], tokens(), strict=True):
                self._memory[slot] = token
            return [next_token([self._memory[slot] for slot in slots])]

        return compute


CONTEXT_TOKENS = 40
STOP_IDS = [3, 4, 5]


def answer_to(prompt: list[int], max_tokens: int) -> list[int]:
    """Up to a stop token."""
    answer = [next_token(prompt)]
    while len(answer) < max_tokens and answer[-1] not in STOP_IDS:
        answer.append(next_token(prompt + answer))
    return answer


class Client:
    """An engine over a fake device, with its requests and their answers."""

    def __init__(
        self,
        device: FakeDevice | None = None,
        *,
        num_blocks: int = 40,
        num_groups: int = 1,
        **limits: Any,
    ) -> None:
        """``num_groups``: 0 runs one step after the other."""
        self.device = device or FakeDevice()
        self.scheduler = Scheduler(KVCache(num_blocks, BLOCK_TOKENS), SchedulerLimits(**limits))
        ahead: Any = RunAhead(self.device, self.scheduler) if num_groups else None
        if num_groups > 1:
            ahead = StepGroups(self.device, self.scheduler, num_groups)
        self.engine = Engine(
            self.device,
            self.scheduler,
            EngineLimits(context_tokens=CONTEXT_TOKENS, vocab_size=VOCAB_SIZE),
            run_ahead=ahead,
            clock=lambda: self.device.now_s,
            check_when_idle=True,
        )
        self.prompts: dict[str, tuple[list[int], int]] = {}
        self.answers = Answers()
        self.num_steps = 0
        self.ended_in: dict[str, int] = {}
        """Sequence -> which step was its last."""

    def submit(self, prompt: list[int], max_tokens: int) -> None:
        name = f"s{len(self.prompts)}"
        self.prompts[name] = prompt, max_tokens
        submit(self.engine, name, prompt, max_tokens, stop_token_ids=STOP_IDS)

    def cancel(self, index: int) -> None:
        if live := [name for name in self.prompts if name not in self.answers.ends]:
            self.engine.cancel(CancelSequence(sequence_id=live[index % len(live)]))

    def step(self, num_steps: int = 1) -> None:
        for _ in range(num_steps):
            self.answers.step(self.engine)
            self.num_steps += 1
            for name in self.answers.ends:
                self.ended_in.setdefault(name, self.num_steps)

    def drain(self) -> None:
        """Every answer is the one that the device computes for its sequence alone."""
        while self.engine.has_work:
            self.step()
        self.engine.scheduler.check_integrity()
        assert self.engine.stats().kv_blocks_used == 0
        assert sorted(self.device.forgotten) == sorted(self.prompts), "each once"
        assert {*self.answers.failed.values()} <= {"cancelled"}
        for name, (prompt, max_tokens) in self.prompts.items():
            answer, end = self.answers.tokens.get(name, []), self.answers.ends[name]
            wanted = answer_to(prompt, min(max_tokens, CONTEXT_TOKENS - len(prompt)))
            num_tokens, is_stopped = len(wanted), wanted[-1] in STOP_IDS
            wanted = wanted[:-1] if is_stopped else wanted
            if name in self.answers.failed:
                assert answer == wanted[: len(answer)]
                continue
            assert answer == wanted
            assert end.num_output_tokens == num_tokens
            assert end.finish_reason == ("stop" if is_stopped else "length")


SETTLED = st.builds(
    lambda seed, num_tokens: [0, *random.Random(seed).choices(range(VOCAB_SIZE), k=num_tokens)],
    st.integers(0, 5),
    st.integers(1, 28),
)
"""Few seeds: some share a prefix."""
UNSETTLED = SETTLED.map(lambda tokens: [1, *tokens[1:]])
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.one_of(SETTLED, SETTLED, UNSETTLED), st.integers(1, 30)),
        st.tuples(st.just("cancel"), st.integers(0, 9)),
        st.tuples(st.just("step"), st.integers(1, 6)),
    ),
    max_size=25,
)


def never_stops(num_tokens: int, max_tokens: int) -> list[int]:
    """A settled prompt whose answer ends by its length."""
    prompts = ([0, *random.Random(n).choices(range(50), k=num_tokens - 1)] for n in range(1000))
    return next(one for one in prompts if answer_to(one, max_tokens)[-1] not in STOP_IDS)


TWO = [("submit", never_stops(3, 20), 20)] * 2
LEAVES = [*TWO, ("step", 12), ("cancel", 1), ("step", 3), ("cancel", 0)]
"""While a step of theirs is under way; of two groups each is one's own."""


@settings(max_examples=4 * settings.default.max_examples)
@example(LEAVES, 1, 0.0, 20, 6, 30)
@example(LEAVES, 2, 0.0, 20, 6, 30)
@given(
    ACTIONS,
    st.sampled_from([0, 1, 1, 2, 3, 4]),
    st.sampled_from([0.0, 0.3]),
    st.integers(10, 20),
    st.integers(1, 6),
    st.integers(3, 30),
)
def test_any_order_of_events_gives_the_same_answers(
    actions: Any, num_groups: int, failing: float, num_blocks: int, max_running: int, tokens: int
) -> None:
    limits = {"max_running": max_running, "prefill_tokens_per_step": tokens}
    device = FakeDevice(num_blocks, failing)
    client = Client(device, num_blocks=num_blocks, num_groups=num_groups, **limits)
    client.engine.cancel(CancelSequence(sequence_id="nobody"))
    for kind, *what in actions:
        getattr(client, kind)(*what)
    client.drain()
    assert not device.under_way


def test_one_step_ahead_where_the_pace_leaves_no_slot_to_who_waits() -> None:
    client = Client(max_running=64, target_step_s=0.1)
    running_limit = client.engine._times.pacer.running_limit
    assert running_limit < 64
    for _ in range(running_limit + 1):
        client.submit(never_stops(3, 12), 12)
    client.step(10)
    queues = client.scheduler.running, client.scheduler.waiting
    assert [len(queue) for queue in queues] == [running_limit, 1]
    assert client.device.num_ahead >= 8
    client.drain()


@each_case("num_failures", [1, 3, 100])
def test_a_launch_ahead_that_raises_leaves_the_step_before_it_as_it_was(num_failures: int) -> None:
    """The device has no room for the first steps that are launched ahead."""
    client = Client()
    client.device.num_failures_ahead = num_failures
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


@each_case(
    ("num_sequences", "num_groups", "shares"),
    [(8, 2, {4}), (7, 2, {3, 4}), (8, 3, {2, 3}), (1, 2, {1}), (2, 4, {1})],
)
def test_those_that_decode_are_shared_evenly(
    num_sequences: int, num_groups: int, shares: set[int]
) -> None:
    client = Client(num_blocks=100, num_groups=num_groups)
    for _ in range(num_sequences):
        client.submit(never_stops(3, 30), 30)
    client.step(12)
    assert set(client.device.num_rows[-8:]) == shares
    assert client.device.most_under_way == min(num_sequences, num_groups)
    client.drain()


@each_case("cancelled", range(4))
@each_case("fails_whole", [False, True])
def test_a_sequence_is_not_failed_for_another_that_has_left(
    cancelled: int, fails_whole: bool
) -> None:
    client = Client(FakeDevice(fails_whole=fails_whole), num_blocks=100, num_groups=2)
    for _ in range(4):
        client.submit(never_stops(3, 20), 20)
    client.step(6)
    if not fails_whole:
        client.device.failing = 1.0
        client.step()
        client.device.failing = 0.0
    client.cancel(cancelled)
    client.drain()
