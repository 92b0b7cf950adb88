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
)
from tests.inference.engine.asking import Answers, submit

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

    def play(self, actions: Any) -> None:
        for kind, *what in actions:
            getattr(self, kind)(*what)
        self.drain()

    def drain(self) -> None:
        """Every answer is the one that the device computes for its sequence alone."""
        while self.engine.has_work:
            self.step()
        self.engine.check_integrity()
        assert self.engine.stats().kv_blocks_used == 0
        assert {*self.answers.failed.values()} <= {"cancelled"}
        for name, (prompt, max_tokens) in self.prompts.items():
            answer, end = self.answers.tokens.get(name, []), self.answers.ends[name]
            wanted = [next_token(prompt)]
            while len(wanted) < max_tokens and len(prompt) + len(wanted) < CONTEXT_TOKENS:
                if wanted[-1] in STOP_IDS:
                    break
                wanted.append(next_token(prompt + wanted))
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
    for seed in range(1000):
        prompt = [0, *random.Random(seed).choices(range(VOCAB_SIZE), k=num_tokens - 1)]
        text = list(prompt)
        for _ in range(max_tokens):
            text.append(next_token(text))
        if not {*text[num_tokens:]}.intersection(STOP_IDS):
            return prompt
    raise AssertionError("every prompt stops")
