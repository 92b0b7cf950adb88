"""The engine of one loaded model: schedule → run → sample → commit → emit, one step at a time.

Owned by one thread; everything here is called from it. Time and the tensor work come from outside
(``clock``, ``TensorExecutor``), so that tests can drive it with neither a model nor a wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TYPE_CHECKING, Any

from inference.engine.adapters import Adapters
from inference.engine.errors import NumericalFault
from inference.engine.faults import (
    NumericalWatch,
    Outcome,
    divide_schedule,
    isolate_faults,
)
from inference.engine.grammars import GrammarCompiler, PendingGrammars
from inference.engine.pace import StepTimes
from inference.engine.prefix_disk import PrefixDisk
from inference.engine.prompt_images import prompt_images
from inference.engine.run_ahead import StepsAhead
from inference.engine.scheduler import EngineLimits, Scheduler, command_problem
from inference.engine.sequence import Sequence
from inference.engine.step import PendingOutputs, PrefillAverage, Sampled, Schedule, emit_step
from inference.protocol.engine import (
    CancelSequence,
    EngineStats,
    SequenceCancelled,
    StepOutputs,
    SubmitSequence,
)

if TYPE_CHECKING:
    from inference.engine.executor import TensorExecutor

COMPILE_WAIT_S = 0.005


class Engine:
    def __init__(
        self,
        executor: TensorExecutor,
        scheduler: Scheduler,
        limits: EngineLimits,
        *,
        run_ahead: StepsAhead | None = None,
        grammars: GrammarCompiler | None = None,
        adapters: Adapters | None = None,
        prefix_disk: PrefixDisk | None = None,
        prefill_average: PrefillAverage | None = None,
        clock: Callable[[], float] = time.monotonic,
        check_when_idle: bool = False,
    ) -> None:
        self.executor = executor
        self.scheduler = scheduler
        self._limits = limits
        self.run_ahead = run_ahead
        self._pending_grammars = PendingGrammars(grammars)
        self._adapters = adapters or Adapters(None)
        self._prefix_disk = prefix_disk
        self._clock = clock
        self._check_when_idle = check_when_idle
        self._sequences: dict[str, Sequence] = {}
        self._outputs = PendingOutputs()
        self._num_submitted = 0
        self._step_end_s = 0.0
        self._times = StepTimes(scheduler.limits, prefill_average)
        if scheduler.speculator is not None:
            scheduler.speculator.weigh_by(self._times.pacer.step_time)
        self._numerical_watch = NumericalWatch()
        self.load_warnings: list[str] = []

    @property
    def has_work(self) -> bool:
        if self._sequences or self._outputs:
            return True
        return self._prefix_disk is not None and self._prefix_disk.has_unwritten

    @property
    def has_prompts(self) -> bool:
        return self.scheduler.has_prompts

    def step(self) -> StepOutputs:
        """Raises ``StepFault`` where the device is not sound: then the engine is lost."""
        started_s = self._clock()
        self._fail_overdue(started_s)
        self._take_grammars_and_adapters()
        if self._prefix_disk is not None:
            self._prefix_disk.before_step()
        schedule, execute = self._next_schedule()
        if schedule.is_empty:
            self._wait()
        else:
            if self.run_ahead is not None and self.run_ahead.is_ahead:
                started_s = self._step_end_s  # until then the device had another
            for chunk in schedule.prefills:
                if chunk.sequence.started_s is None:
                    chunk.sequence.started_s = started_s
            outcome = isolate_faults(schedule, execute, self.executor.recover, divide_schedule)
            self._step_end_s = self._clock()
            self._settle(outcome)
            if outcome.faults:
                self._times.record_in_parts(schedule, outcome.faults)
            else:
                self._record_time(schedule, outcome, self._step_end_s - started_s)
        if self._prefix_disk is not None:
            self._prefix_disk.after_step()
        if self._check_when_idle and not self._sequences:
            self.scheduler.check_integrity()
        return self.take_outputs()

    def submit(self, command: SubmitSequence) -> None:
        problem = command_problem(command, self._limits, self.scheduler, self._adapters)
        if problem is None and command.sequence_id in self._sequences:
            problem = "engine_error", "a sequence with this sequence id is running"
        if problem is not None:
            self._outputs.fail(command.sequence_id, *problem)
            return
        self._num_submitted += 1
        now_s, vision = self._clock(), self._limits.vision
        sequence = Sequence(
            command.sequence_id,
            command.token_ids,
            command.params,
            context_tokens=self._limits.context_tokens,
            arrival=self._num_submitted,
            deadline_s=now_s + self._queue_wait_s(command),
            submitted_s=now_s,
            same_prompt_as=self._sequences.get(command.same_prompt_as or ""),
            account=command.account,
            weight=command.weight,
            is_anonymous=command.is_anonymous,
            cache_salt=command.cache_salt,
            images=prompt_images(command, vision) if vision and command.images else None,
            prediction=command.prediction,
            is_traced=command.is_traced,
        )
        self._sequences[command.sequence_id] = sequence
        if command.params.grammar is not None:
            self._pending_grammars.add(sequence, command.params.grammar)
        if command.adapter is not None:
            self._adapters.add(sequence, command.adapter)
        if self._prefix_disk is not None and not command.images:
            self._prefix_disk.add(sequence)
        self.scheduler.add(sequence)

    def close(self) -> None:
        if self._prefix_disk is not None:
            self._prefix_disk.flush()

    def drop_adapter(self, name: str) -> None:
        self._adapters.drop(name)

    def cancel(self, command: CancelSequence) -> None:
        """An unknown id has already ended."""
        if (sequence := self._sequences.get(command.sequence_id)) is None:
            return
        self.scheduler.end(sequence)
        self._forget(sequence)
        cancelled = SequenceCancelled(
            sequence_id=command.sequence_id, used=sequence.usage(self._clock())
        )
        self._outputs.add(cancelled)

    def cancel_all(self) -> StepOutputs:
        for sequence_id in list(self._sequences):
            self.cancel(CancelSequence(sequence_id=sequence_id))
        return self.take_outputs()

    def stats(self) -> EngineStats:
        allocator = self.scheduler.kv_cache.allocator
        speculator = self.scheduler.speculator
        times, average, now_s = self._times, self._times.prefill_average, self._clock()
        return EngineStats(
            in_flight=len(self.scheduler.running),
            queue_depth=len(self.scheduler.waiting),
            kv_blocks_used=allocator.num_used,
            kv_blocks_total=allocator.num_blocks,
            decode_tokens_per_s=times.rates.decode_tokens_per_s(now_s),
            prefill_tokens_per_s=times.rates.prefill_tokens_per_s(now_s),
            last_forward_unix_s=times.last_forward_unix_s,
            num_preemptions=self.scheduler.num_preemptions,
            prefix_hit_tokens=self.scheduler.prefix_hit_tokens,
            prefill_speed=average.speed if average is not None else None,
            adapters=self._adapters.names,
            num_drafted_tokens=self.scheduler.num_drafted_tokens,
            num_accepted_drafts=self.scheduler.num_accepted_drafts,
            speculation="" if speculator is None else speculator.status,
            warnings=self._warnings,
        )

    @property
    def _warnings(self) -> list[str]:
        disk = self._prefix_disk
        disk_warnings = [disk.problem] if disk is not None and disk.problem else []
        return [*self.load_warnings, *disk_warnings]

    @property
    def has_outputs(self) -> bool:
        return bool(self._outputs)

    def take_outputs(self) -> StepOutputs:
        return self._outputs.take(self.stats())

    def _next_schedule(self) -> tuple[Schedule, Callable[[Schedule], Sampled]]:
        pacer = self._times.pacer
        if self.run_ahead is None:
            return self.scheduler.schedule(pacer), self.executor.execute
        return self.run_ahead.next_schedule(pacer), self.run_ahead.execute

    def _record_time(
        self, schedule: Schedule, outcome: Outcome[Schedule, Sampled], step_s: float
    ) -> None:
        num_accepted_drafts = sum(sampled.num_accepted_drafts for _, sampled in outcome.done)
        speculator = self.scheduler.speculator
        self._times.record(
            schedule,
            step_s=step_s,
            now_s=self._clock(),
            num_accepted_drafts=num_accepted_drafts,
            drafting_s=0.0 if speculator is None else speculator.take_drafting_s(),
        )

    def _settle(self, outcome: Outcome[Schedule, Sampled]) -> None:
        for part, sampled in outcome.done:
            self.scheduler.commit(part, sampled.token_ids, sampled.accepted)
            self._emit(part, sampled)
        for part, fault in outcome.failed:
            self.scheduler.end(*part.sequences)
            for sequence in part.sequences:
                self._fail(sequence, fault.code, fault.client_message)
        self._numerical_watch.record(
            num_rows=sum(len(sampled.token_ids) for _, sampled in outcome.done),
            num_failed=sum(sampled.num_failed for _, sampled in outcome.done),
        )

    def _emit(self, schedule: Schedule, sampled: Sampled) -> None:
        ended, failed = emit_step(schedule, sampled, self._outputs, self._step_end_s)
        for sequence in ended:
            self._forget(sequence)
        for sequence, end in failed:
            if end.code == NumericalFault.code:
                self.scheduler.kv_cache.invalidate_prefix(sequence)
            self._fail(sequence, end.code, end.message, num_unusable_tokens=1)
            ended.append(sequence)
        self.scheduler.end(*ended)

    def _wait(self) -> None:
        futures: list[Future[Any]] = [*self._adapters.futures, *self._pending_grammars.futures]
        if self._prefix_disk is not None:
            futures += self._prefix_disk.futures
        if futures:
            wait(futures, COMPILE_WAIT_S, FIRST_COMPLETED)

    def _take_grammars_and_adapters(self) -> None:
        if self._pending_grammars.pending:
            for sequence, problem in self._pending_grammars.take_done():
                self.scheduler.end(sequence)
                self._fail(sequence, "invalid_grammar", problem)
        for sequence, problem in self._adapters.take_done():
            self.scheduler.end(sequence)
            self._fail(sequence, "model_load_failed", problem)

    def _fail_overdue(self, now_s: float) -> None:
        for sequence in self.scheduler.overdue(now_s):
            self.scheduler.end(sequence)
            wait_s = now_s - sequence.submitted_s
            self._fail(sequence, "queue_timeout", f"waited {wait_s:.1f} s without starting")

    def _queue_wait_s(self, command: SubmitSequence) -> float:
        most_s = self.scheduler.limits.max_queue_wait_s
        asked_s = command.max_queue_wait_s
        return most_s if asked_s is None else min(most_s, asked_s)

    def _fail(
        self, sequence: Sequence, code: str, message: str, *, num_unusable_tokens: int = 0
    ) -> None:
        self._forget(sequence)
        used = sequence.usage(self._clock(), num_unusable_tokens=num_unusable_tokens)
        self._outputs.fail(sequence.sequence_id, code, message, used)

    def _forget(self, sequence: Sequence) -> None:
        del self._sequences[sequence.sequence_id]
        if sequence.params.grammar is not None:
            self._pending_grammars.forget(sequence)
        self._adapters.forget(sequence)
        if self._prefix_disk is not None:
            self._prefix_disk.forget(sequence)
        self.executor.forget(sequence)
