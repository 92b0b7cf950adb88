"""A device of plain integers that works by itself: a launched step is computed only when it or a
later one is read, in order. Its memory is one token a slot, so that a row that
reads another sequence's block, or one that was overwritten, answers wrongly.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

from inference.engine.errors import StepFault
from inference.engine.faults import recover
from inference.engine.sequence import Sequence
from inference.engine.step import Sampled, Schedule

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
