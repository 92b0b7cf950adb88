"""The engine of one embedding model: batch → forward → return vectors, one step at a time.

Owned by one thread; everything here is called from it. Steps take about a tenth of a second, so
that cancellations take effect soon: a request of many inputs runs over many steps. The tensor work
and the time come from outside.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inference.engine.embedding.embedding_queue import (
    EmbeddingJob,
    EmbeddingLimits,
    EmbeddingQueue,
    Row,
)
from inference.engine.errors import NumericalFault, StepFault
from inference.engine.faults import NumericalWatch, Outcome, halves, isolate_faults
from inference.engine.scheduling.pace import StepPacer
from inference.engine.step import Output, PendingOutputs, TokenRates
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
    from inference.engine.embedding.embedding_load import EmbeddingRunner

STEP_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingBounds:
    max_input_tokens: int
    vocab_size: int
    dimensions: int
    step_tokens: int
    """Most token rows of one forward, padding included."""


class EmbeddingEngine:
    def __init__(
        self,
        executor: EmbeddingRunner,
        bounds: EmbeddingBounds,
        limits: EmbeddingLimits,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._executor = executor
        self._bounds = bounds
        self._clock = clock
        self._queue = EmbeddingQueue(limits)
        self._jobs: dict[str, EmbeddingJob] = {}
        self._outputs = PendingOutputs()
        self._pacer = StepPacer(1, bounds.step_tokens, STEP_S)
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
        """Runs one forward; where the device refuses it, only the jobs at fault fail. Raises
        ``StepFault`` where the device is not sound: then the engine is lost."""
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
        """Queues a request's inputs, or refuses it by an event in the next step's outputs."""
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
        bounds, prompts = self._bounds, command.prompts
        longest = max(map(len, prompts), default=0)
        if not prompts or not all(prompts):
            return "bad_token_id", "an input has no tokens"
        if longest > bounds.max_input_tokens:
            numbers = f"{longest} tokens; the model takes {bounds.max_input_tokens}"
            return "context_length_exceeded", f"an input has {numbers}"
        if min(map(min, prompts)) < 0 or max(map(max, prompts)) >= bounds.vocab_size:
            return "bad_token_id", f"a token id is outside the vocabulary of {bounds.vocab_size}"
        if not 1 <= (command.dimensions or bounds.dimensions) <= bounds.dimensions:
            return "engine_error", f"the vectors have {bounds.dimensions} dimensions"
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
