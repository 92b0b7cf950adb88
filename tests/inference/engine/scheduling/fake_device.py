"""A device of plain integers that works by itself: a launched step is computed only when it or a
later one is read, in order. Its memory is one token a slot, so that a row that reads another
sequence's block, or one that was overwritten, answers wrongly. And the client of an engine."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from inference.engine.cache.kv_cache import KVCache
from inference.engine.engine import Engine
from inference.engine.errors import StepFault
from inference.engine.faults import recover
from inference.engine.scheduling.run_ahead import RunAhead, StepsAhead
from inference.engine.scheduling.scheduler import EngineLimits, Scheduler
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from inference.engine.sequence import Sequence
from inference.engine.step import Sampled, Schedule
from inference.protocol.engine import (
    CancelSequence,
    SequenceFailed,
    SequenceStep,
    SubmitSequence,
)
from inference.protocol.sampling import SamplingParams

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
    """Launches ``is_settled`` sequences ahead: those whose first token is even."""

    def __init__(self) -> None:
        self._memory: dict[int, int] = {}
        self._queue: list[FakeStep] = []
        self.num_ahead = 0
        self.num_rows_in_vain = 0
        """Rows read of sequences that had ended."""

    def execute(self, schedule: Schedule) -> Sampled:
        return self.read(self.launch(schedule))

    def launch(self, schedule: Schedule, after: FakeStep | None = None) -> FakeStep:
        if after is not None:
            assert after.schedule.num_scored_tokens == 0
            assert all(map(self.is_settled, after.schedule.sampled))
            self.num_ahead += 1
        rows = [self._decode_row(s, after) for s in schedule.decodes]
        for chunk in schedule.prefills:
            slots = slots_of(chunk.sequence, chunk.end)
            tokens = chunk.sequence.token_ids[chunk.start : chunk.end]
            row = self._row(slots, chunk.start, lambda tokens=tokens: tokens)
            rows.append(row if chunk.is_last else lambda row=row: (row(), [])[1])
        step = FakeStep(schedule, lambda: [token for row in rows for token in row()])
        self._queue.append(step)
        return step

    def read(self, step: FakeStep) -> Sampled:
        while step in self._queue:
            first = self._queue.pop(0)
            first.token_ids = first.compute()
        sampled = step.schedule.sampled
        self.num_rows_in_vain += sum(s.state.value == "ended" for s in sampled)
        return Sampled(list(step.token_ids), {}, {})

    def is_settled(self, sequence: Sequence) -> bool:
        return sequence.token_ids[0] % 2 == 0

    def recover(self, error: Exception) -> StepFault:
        return recover(error, "cpu")

    def forget(self, sequence: Sequence) -> None:
        pass

    def _decode_row(self, sequence: Sequence, after: FakeStep | None) -> Callable[[], list[int]]:
        num_tokens = len(sequence.token_ids)
        if after is None:
            last = sequence.token_ids[-1]
            return self._row(slots_of(sequence, num_tokens), num_tokens - 1, lambda: [last])
        row = after.schedule.sampled.index(sequence)
        slots = slots_of(sequence, num_tokens + 1)
        return self._row(slots, num_tokens, lambda: [after.token_ids[row]])

    def _row(
        self, slots: list[int], start: int, tokens: Callable[[], list[int]]
    ) -> Callable[[], list[int]]:
        def compute() -> list[int]:
            for slot, token in zip(slots[start:], tokens(), strict=True):
                self._memory[slot] = token
            return [next_token([self._memory[slot] for slot in slots])]

        return compute


def slots_of(sequence: Sequence, num_tokens: int) -> list[int]:
    size = BLOCK_TOKENS
    return [sequence.block_ids[p // size] * size + p % size for p in range(num_tokens)]


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


def never_stops(num_tokens: int, max_tokens: int) -> list[int]:
    """A settled prompt whose answer ends by its length."""
    for seed in range(1000):
        prompt = [0, *random.Random(seed).choices(range(VOCAB_SIZE), k=num_tokens - 1)]
        if expected(prompt, max_tokens)[1] == ("length", max_tokens):
            return prompt
    raise AssertionError("every prompt stops")
