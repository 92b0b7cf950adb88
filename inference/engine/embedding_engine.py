"""The engine of one embedding model: batch → forward → return vectors, one step at a time.

Owned by one thread. Steps take about a tenth of a second, so that cancellations take effect soon.

Accounts take turns by weighted fair queueing over the tokens they received, and so do the jobs of
one account; anonymous callers' jobs come last. The batch begins with the next job's longest open
input; inputs of about that length from any job join it, as long as the padded batch stays within
the step's tokens:

    turn order   job A | job B | job C        longest of A: 200 tokens
    the batch    A 200, C 190, A 180, B 120   (rows * 200 <= max_tokens; none shorter than 100)

So a large request holds up a small one for one round at most.
"""

from __future__ import annotations

import heapq
import time
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from inference.engine.errors import NumericalFault, StepFault
from inference.engine.faults import NumericalWatch, Outcome, halves, isolate_faults
from inference.engine.pace import StepPacer
from inference.engine.step import Output, PendingOutputs, TokenRates
from inference.engine.waiting_queue import FairClock, SchedulerLimits
from inference.protocol.engine import (
    CancelSequence,
    EmbedSequences,
    EngineStats,
    SequenceCancelled,
    SequencesEmbedded,
    SequenceUsage,
    StepOutputs,
)

if TYPE_CHECKING:
    from inference.engine.embedding_load import EmbeddingRunner

MAX_QUEUED_TOKENS = 2**24
"""Tokens of all queued jobs, at four bytes each; one job alone may have more."""


class EmbeddingJob:
    """``open_inputs`` are (number of tokens, index), shortest first."""

    def __init__(self, command: EmbedSequences, *, deadline_s: float) -> None:
        self.sequence_id = command.sequence_id
        self.caller = command.is_anonymous, command.account
        self.weight = command.weight
        self.dimensions = command.dimensions
        self.prompts = [array("i", prompt) for prompt in command.prompts]
        self.open_inputs = sorted((len(p), index) for index, p in enumerate(self.prompts))
        self.vectors: dict[int, bytes] = {}
        self.deadline_s: float | None = deadline_s

    @property
    def has_started(self) -> bool:
        return self.deadline_s is None

    @property
    def is_done(self) -> bool:
        return len(self.vectors) == len(self.prompts)

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.prompts))

    @property
    def num_computed_tokens(self) -> int:
        return sum(len(self.prompts[index]) for index in self.vectors)


@dataclass(frozen=True, slots=True)
class Row:
    job: EmbeddingJob
    index: int

    @property
    def token_ids(self) -> array[int]:
        return self.job.prompts[self.index]


class EmbeddingQueue:
    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self._jobs: deque[EmbeddingJob] = deque()
        self._num_tokens = 0
        self._clock = FairClock()

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def num_started(self) -> int:
        return sum(job.has_started for job in self._jobs)

    @property
    def num_waiting(self) -> int:
        return len(self._jobs) - self.num_started

    def has_room(self, num_tokens: int) -> bool:
        if self._jobs and self._num_tokens + num_tokens > MAX_QUEUED_TOKENS:
            return False
        return self.num_waiting < self.limits.max_queue_depth

    def is_full_for(self, account: str) -> bool:
        num_waiting = sum(not job.has_started for job in self._jobs if job.caller[1] == account)
        num_free_slots = self.limits.max_running - self.num_started
        return num_waiting - num_free_slots >= self.limits.max_queue_depth_per_account

    def add(self, job: EmbeddingJob) -> None:
        self._jobs.append(job)
        self._num_tokens += job.num_tokens

    def remove(self, job: EmbeddingJob) -> None:
        self._jobs.remove(job)
        self._num_tokens -= job.num_tokens
        if not self._jobs:
            self._clock = FairClock()

    def overdue(self, now_s: float) -> list[EmbeddingJob]:
        return [one for one in self._jobs if one.deadline_s is not None and one.deadline_s <= now_s]

    def take_batch(self, max_tokens: int) -> list[Row]:
        """Longest first; at least one if any job has an open input."""
        runnable = self._runnable()
        if not runnable:
            return []
        first = runnable[0]
        longest = first.open_inputs[-1][0]
        near = [_downwards(job, longest) for job in runnable]
        by_length = heapq.merge(*near, key=lambda row: -len(row.token_ids))
        rows = list(islice(by_length, max(1, max_tokens // longest)))
        for row in rows:
            entry = (len(row.token_ids), row.index)
            del row.job.open_inputs[bisect_left(row.job.open_inputs, entry)]
            row.job.deadline_s = None
        self._clock.begin(first.caller)
        for row in rows:
            self._clock.charge(row.job.caller, len(row.token_ids), row.job.weight)
        self._jobs.remove(first)
        self._jobs.append(first)
        return rows

    def _runnable(self) -> list[EmbeddingJob]:
        num_free_slots = self.limits.max_running - self.num_started
        runnable = []
        for job in self._in_turns():
            if not job.has_started:
                if num_free_slots <= 0:
                    continue
                num_free_slots -= 1
            if job.open_inputs:
                runnable.append(job)
        return runnable

    def _in_turns(self) -> list[EmbeddingJob]:
        start = self._clock.start
        return sorted(self._jobs, key=lambda job: (job.caller[0], start(job.caller)))


def _downwards(job: EmbeddingJob, longest: int) -> Iterator[Row]:
    end = bisect_right(job.open_inputs, longest, key=lambda entry: entry[0])
    for position in range(end - 1, -1, -1):
        length, index = job.open_inputs[position]
        if 2 * length < longest:
            return
        yield Row(job, index)


class EmbeddingEngine:
    def __init__(
        self,
        executor: EmbeddingRunner,
        limits: SchedulerLimits,
        *,
        max_input_tokens: int,
        vocab_size: int,
        dimensions: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._executor = executor
        self._max_input_tokens = max_input_tokens
        self._vocab_size = vocab_size
        self._dimensions = dimensions
        self._clock = clock
        self._queue = EmbeddingQueue(limits)
        self._jobs: dict[str, EmbeddingJob] = {}
        self._outputs = PendingOutputs()
        self._pacer = StepPacer(1, limits.prefill_tokens_per_step, limits.target_step_s)
        self._rates = TokenRates()
        self._last_forward_unix_s: float | None = None
        self._numerical_watch = NumericalWatch()

    @property
    def has_work(self) -> bool:
        return bool(self._jobs or self._outputs)

    @property
    def has_prompts(self) -> bool:
        return self.has_work

    def step(self) -> StepOutputs:
        """Raises ``StepFault`` where the device is not sound: then the engine is lost."""
        started_s = self._clock()
        self._fail_overdue(started_s)
        rows = self._queue.take_batch(self._pacer.prefill_tokens(0))
        if rows:
            outcome = isolate_faults(
                rows, self._executor.embed, self._executor.recover, divide_rows
            )
            if not outcome.faults:
                self._record(rows, self._clock() - started_s)
            self._settle(outcome)
        return self.take_outputs()

    def submit(self, command: EmbedSequences) -> None:
        if (refusal := self._refusal(command)) is not None:
            self._outputs.fail(command.sequence_id, *refusal)
            return
        deadline_s = self._clock() + self._queue.limits.max_queue_wait_s
        job = EmbeddingJob(command, deadline_s=deadline_s)
        self._jobs[command.sequence_id] = job
        self._queue.add(job)

    def cancel(self, command: CancelSequence) -> None:
        if (job := self._jobs.get(command.sequence_id)) is not None:
            self._end(job, SequenceCancelled(sequence_id=job.sequence_id, used=_usage(job)))

    def cancel_all(self) -> StepOutputs:
        for sequence_id in list(self._jobs):
            self.cancel(CancelSequence(sequence_id=sequence_id))
        return self.take_outputs()

    def stats(self) -> EngineStats:
        return EngineStats(
            in_flight=self._queue.num_started,
            queue_depth=self._queue.num_waiting,
            kv_blocks_used=0,
            kv_blocks_total=0,
            decode_tokens_per_s=0.0,
            prefill_tokens_per_s=self._rates.prefill_tokens_per_s(self._clock()),
            last_forward_unix_s=self._last_forward_unix_s,
        )

    @property
    def has_outputs(self) -> bool:
        return bool(self._outputs)

    def take_outputs(self) -> StepOutputs:
        return self._outputs.take(self.stats())

    def _refusal(self, command: EmbedSequences) -> tuple[str, str] | None:
        prompts, dimensions = command.prompts, self._dimensions
        longest = max(map(len, prompts), default=0)
        if not prompts or not all(prompts):
            return "bad_token_id", "an input has no tokens"
        if longest > self._max_input_tokens:
            numbers = f"{longest} tokens; the model takes {self._max_input_tokens}"
            return "context_length_exceeded", f"an input has {numbers}"
        if min(map(min, prompts)) < 0 or max(map(max, prompts)) >= self._vocab_size:
            return "bad_token_id", f"a token id is outside the vocabulary of {self._vocab_size}"
        if not 1 <= (command.dimensions or dimensions) <= dimensions:
            return "engine_error", f"the vectors have {dimensions} dimensions"
        if not self._queue.has_room(sum(map(len, prompts))):
            return "queue_full", f"{self._queue.num_waiting} requests are waiting"
        if self._queue.is_full_for(command.account):
            limits = self._queue.limits
            return "rate_limit_exceeded", (
                f"one account's requests may have {limits.max_queue_depth_per_account} of the "
                f"{limits.max_queue_depth} places of those that wait"
            )
        if command.sequence_id in self._jobs:
            return "engine_error", "a sequence with this sequence id is running"
        return None

    def _settle(self, outcome: Outcome[list[Row], list[bytes | None]]) -> None:
        num_rows = num_failed = 0
        for rows, vectors in outcome.done:
            num_rows, num_failed = num_rows + len(rows), num_failed + vectors.count(None)
            for row, vector in zip(rows, vectors, strict=True):
                self._hand_out(row, vector)
        for (row,), fault in outcome.failed:
            if row.job.sequence_id in self._jobs:
                self._fail(row.job, fault.code, fault.client_message)
        self._numerical_watch.record(num_rows=num_rows, num_failed=num_failed)

    def _hand_out(self, row: Row, vector: bytes | None) -> None:
        job = row.job
        if job.sequence_id not in self._jobs:
            return  # another of its rows was not a number
        if vector is None:
            self._fail(job, NumericalFault.code, NumericalFault.client_message)
            return
        job.vectors[row.index] = vector
        if job.is_done:
            vectors = [job.vectors[index] for index in range(len(job.prompts))]
            self._end(job, SequencesEmbedded(sequence_id=job.sequence_id, vectors=vectors))

    def _fail_overdue(self, now_s: float) -> None:
        for job in self._queue.overdue(now_s):
            wait_s = self._queue.limits.max_queue_wait_s
            self._fail(job, "queue_timeout", f"waited {wait_s:g} s without starting")

    def _fail(self, job: EmbeddingJob, code: str, message: str) -> None:
        self._forget(job)
        self._outputs.fail(job.sequence_id, code, message, _usage(job))

    def _end(self, job: EmbeddingJob, output: Output) -> None:
        self._forget(job)
        self._outputs.add(output)

    def _forget(self, job: EmbeddingJob) -> None:
        del self._jobs[job.sequence_id]
        self._queue.remove(job)

    def _record(self, rows: Sequence[Row], step_s: float) -> None:
        lengths = [len(row.token_ids) for row in rows]
        self._last_forward_unix_s = time.time()
        self._pacer.record(
            num_decode_rows=0, num_prefill_tokens=len(rows) * max(lengths), step_s=step_s
        )
        self._rates.record(
            now_s=self._clock(),
            step_s=step_s,
            num_decode_tokens=0,
            num_prefill_tokens=sum(lengths),
        )


def _usage(job: EmbeddingJob) -> SequenceUsage:
    return SequenceUsage(num_prompt_tokens=job.num_computed_tokens)


def divide_rows(rows: list[Row], fault: StepFault) -> list[list[Row]]:
    return halves(rows) if len(rows) > 1 else []
