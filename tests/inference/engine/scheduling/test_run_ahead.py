"""Steps launched before the last one is read: the same answers, whatever happens meanwhile, and no
sequence waits longer."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from inference.engine.cache.kv_cache import KVCache
from inference.engine.engine import Engine
from inference.engine.scheduling.run_ahead import RunAhead, StepsAhead
from inference.engine.scheduling.scheduler import EngineLimits, Scheduler
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from inference.engine.step import Schedule
from inference.protocol.engine import (
    CancelSequence,
    SequenceFailed,
    SequenceStep,
    SubmitSequence,
)
from inference.protocol.sampling import SamplingParams
from tests.cases import each_case
from tests.inference.engine.scheduling.fake_device import (
    BLOCK_TOKENS,
    VOCAB_SIZE,
    FakeDevice,
    FakeStep,
    next_token,
)

CONTEXT_TOKENS = 40
STOP_IDS = [3, 4, 5]
MOST_STEPS_OF_PATIENCE = 2
"""How long the head of the queue may wait once a running slot and blocks are free: for the step
that was launched already, and its own."""


class Client:
    """An engine over a fake device, with its requests and their answers."""

    def __init__(
        self,
        *,
        num_blocks: int = 40,
        device: FakeDevice | None = None,
        steps_ahead: Callable[[Any, Scheduler], StepsAhead] = RunAhead,
        **limits: Any,
    ) -> None:
        self.device = device or FakeDevice()
        self.scheduler = Scheduler(KVCache(num_blocks, BLOCK_TOKENS), SchedulerLimits(**limits))
        self.engine = Engine(
            self.device,
            self.scheduler,
            EngineLimits(context_tokens=CONTEXT_TOKENS, vocab_size=VOCAB_SIZE),
            run_ahead=steps_ahead(self.device, self.scheduler),
            clock=lambda: 0.0,
            check_when_idle=True,
        )
        self.prompts: dict[str, tuple[list[int], int]] = {}
        self.answers: dict[str, list[int]] = {}
        self.finished: dict[str, tuple[str, int]] = {}
        self.cancelled: set[str] = set()
        self.num_steps = 0
        self.ended_in: dict[str, int] = {}
        """Sequence -> which step was its last."""
        self._passed_over: tuple[str, int] = "", 0
        """Who could have started, and for how many steps in a row."""

    def submit(self, prompt: list[int], max_tokens: int) -> None:
        sequence_id = f"s{len(self.prompts)}"
        self.prompts[sequence_id] = prompt, max_tokens
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, stop_token_ids=STOP_IDS)
        self.engine.submit(SubmitSequence(sequence_id=sequence_id, token_ids=prompt, params=params))

    def cancel(self, index: int) -> None:
        live = [s for s in self.prompts if s not in self.finished and s not in self.cancelled]
        if live:
            self.cancelled.add(live[index % len(live)])
            self.engine.cancel(CancelSequence(sequence_id=live[index % len(live)]))

    def step(self) -> None:
        could_start = self.who_could_start()
        outputs = self.engine.step().outputs
        self.num_steps += 1
        self.check_patience(could_start)
        for output in outputs:
            assert not isinstance(output, SequenceFailed), output
            if isinstance(output, SequenceStep):
                assert output.sequence_id not in self.finished, "it ends once"
                self.answers.setdefault(output.sequence_id, []).extend(output.token_ids)
                if output.finish_reason is not None:
                    ended = output.finish_reason, output.num_output_tokens
                    self.finished[output.sequence_id] = ended
                    self.ended_in[output.sequence_id] = self.num_steps

    def who_could_start(self) -> str:
        """The head of the queue, where a running slot is free, blocks for all its tokens beside one
        for each running sequence, and no other sequence has a claim to the step's rows: neither a
        prompt nor a preempted sequence's recomputation."""
        scheduler = self.scheduler
        first = scheduler.waiting.next()
        limit = min(self.engine.running_limit, scheduler.limits.max_running)
        has_free_slots = len(scheduler.running) < limit
        is_prefilling = any(s.num_computed_tokens < len(s.token_ids) - 1 for s in scheduler.running)
        if first is None or not has_free_slots or is_prefilling:
            return ""
        needed = -(-len(first.token_ids) // BLOCK_TOKENS) + len(scheduler.running)
        return first.sequence_id if needed <= scheduler.kv_cache.allocator.num_free else ""

    def check_patience(self, could_start: str) -> None:
        is_waiting = could_start in {s.sequence_id for s in self.scheduler.waiting}
        name, num_steps = self._passed_over
        if not could_start or not is_waiting:
            self._passed_over = "", 0
            return
        self._passed_over = could_start, num_steps + 1 if name == could_start else 1
        assert self._passed_over[1] < MOST_STEPS_OF_PATIENCE, f"{could_start} is passed over"

    def play(self, actions: Any) -> None:
        for kind, what, number in actions:
            if kind == "submit":
                self.submit(what, number)
            elif kind == "cancel":
                self.cancel(what)
            else:
                for _ in range(what):
                    self.step()
        self.drain()
        self.check()

    def drain(self) -> None:
        while self.engine.has_work:
            self.step()
        self.engine.check_integrity()
        assert self.engine.stats().kv_blocks_used == 0

    def check(self) -> None:
        """Every answer is the one that the device computes for its sequence alone."""
        for sequence_id, (prompt, max_tokens) in self.prompts.items():
            wanted, finish = expected(prompt, max_tokens)
            if sequence_id in self.cancelled:
                answer = self.answers.get(sequence_id, [])
                assert answer == wanted[: len(answer)]
            else:
                assert self.answers.get(sequence_id, []) == wanted
                assert self.finished[sequence_id] == finish


def expected(prompt: list[int], max_tokens: int) -> tuple[list[int], tuple[str, int]]:
    tokens, output = list(prompt), []
    while len(output) < max_tokens and len(tokens) < CONTEXT_TOKENS:
        token = next_token(tokens)
        if token in STOP_IDS:
            return output, ("stop", len(output) + 1)
        tokens.append(token)
        output.append(token)
    return output, ("length", len(output))


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
        st.tuples(st.just("cancel"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("step"), st.integers(1, 6), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=3 * settings.default.max_examples)
@given(ACTIONS, st.integers(10, 20), st.integers(1, 6), st.integers(3, 30))
def test_any_order_of_events_gives_the_same_answers(
    actions: Any, num_blocks: int, max_running: int, prefill_tokens: int
) -> None:
    client = Client(
        num_blocks=num_blocks, max_running=max_running, prefill_tokens_per_step=prefill_tokens
    )
    client.play(actions)


@given(
    st.lists(st.tuples(SETTLED, st.integers(1, 40)), min_size=3, max_size=6), st.integers(10, 14)
)
def test_nobody_is_passed_over_where_blocks_are_short(
    requests: list[tuple[list[int], int]], num_blocks: int
) -> None:
    client = Client(num_blocks=num_blocks)
    for prompt, max_tokens in requests:
        client.submit(prompt, max_tokens)
    client.drain()
    client.check()


def test_steady_decoding_is_always_one_step_ahead() -> None:
    client = Client()
    for first, max_tokens in ((0, 6), (6, 9), (4, 12)):
        client.submit([first, 7, 9], max_tokens)
    client.drain()
    client.check()
    reasons, lengths = zip(*client.finished.values(), strict=True)
    assert client.device.num_ahead >= max(lengths) - 1
    assert sorted(reasons) == ["length", "length", "stop"]
    assert client.device.num_rows_in_vain <= 1


def test_one_step_ahead_where_the_pace_leaves_no_slot_to_who_waits() -> None:
    client = Client(max_running=64, target_step_s=0.1)
    running_limit = client.engine.running_limit
    assert running_limit < 64
    for _ in range(running_limit + 1):
        client.submit(never_stops(3, 12), 12)
    for _ in range(10):
        client.step()
    assert len(client.scheduler.running) == running_limit
    assert len(client.scheduler.waiting) == 1
    assert client.device.num_ahead >= 8
    client.drain()
    client.check()


class FailingAhead(FakeDevice):
    """Has no room for the first ``num_failures`` steps that are launched ahead."""

    def __init__(self, num_failures: int) -> None:
        super().__init__()
        self.num_failures = num_failures

    def launch(self, schedule: Schedule, after: FakeStep | None = None) -> FakeStep:
        if after is not None and self.num_failures > 0:
            self.num_failures -= 1
            raise MemoryError
        return super().launch(schedule, after)


@each_case("num_failures", [1, 3, 100])
def test_a_launch_ahead_that_raises_leaves_the_step_before_it_as_it_was(num_failures: int) -> None:
    client = Client(device=FailingAhead(num_failures))
    client.submit(never_stops(3, 12), 12)
    client.drain()
    client.check()
    assert client.num_steps == 12, "none is run twice"


def test_who_comes_waits_for_one_step_more() -> None:
    client = Client()
    client.submit([0, 1], 15)
    for _ in range(3):
        client.step()
    ahead = client.device.num_ahead
    client.submit([2, 1], 2)
    client.step()
    assert client.device.num_ahead == ahead, "nobody is launched past a prompt that may start"
    client.step()
    assert client.answers["s1"]
    client.drain()
    client.check()


def never_stops(num_tokens: int, max_tokens: int) -> list[int]:
    """A settled prompt whose answer ends by its length."""
    for seed in range(1000):
        prompt = [0, *random.Random(seed).choices(range(VOCAB_SIZE), k=num_tokens - 1)]
        if expected(prompt, max_tokens)[1] == ("length", max_tokens):
            return prompt
    raise AssertionError("every prompt stops")


def test_who_lacked_blocks_starts_once_they_are_free() -> None:
    client = Client(num_blocks=12)
    for num_tokens, max_tokens in ((4, 30), (28, 3), (16, 2)):
        client.submit(never_stops(num_tokens, max_tokens), max_tokens)
    client.drain()
    client.check()
    assert client.ended_in == {"s0": 30, "s1": 3, "s2": 5}, "one was launched in between"


def test_a_long_prompt_continues_beside_who_decodes() -> None:
    client = Client(prefill_tokens_per_step=4)
    client.submit([0, 1], 15)
    client.step()
    client.submit([2, *range(20)], 2)
    for _ in range(2 + 6):
        client.step()
    assert client.answers["s1"]
    client.drain()
    client.check()


def test_the_host_s_part_in_a_choice_is_waited_for() -> None:
    client = Client()
    client.submit([1, 8], 9)
    client.submit([2, 8], 9)
    client.drain()
    client.check()
    together = min(num_tokens for _, num_tokens in client.finished.values())
    assert client.device.num_ahead <= 9 - together


def test_a_cancel_frees_its_blocks_while_its_row_is_launched() -> None:
    client = Client()
    client.submit([0, 1], 15)
    for _ in range(3):
        client.step()
    client.cancel(0)
    assert client.engine.stats().kv_blocks_used == 0
    client.submit([2, 6, 8, 9], 3)
    client.drain()
    client.check()
