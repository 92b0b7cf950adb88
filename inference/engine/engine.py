"""The engine of one loaded model: schedule → run → sample → commit → emit, one step at a time.

Owned by one thread; everything here is called from it. Time and the tensor work come from outside
(``clock``, ``Executor``), so that tests can drive it with neither a model nor a wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from inference.engine.adapters import Adapters
from inference.engine.faults.containment import Outcome, contain, divide_schedule
from inference.engine.faults.kinds import StepFault
from inference.engine.faults.numerical_watch import NumericalWatch
from inference.engine.images.prompt_images import PromptImages, image_problem
from inference.engine.pending_outputs import PendingOutputs
from inference.engine.prefix_disk import PrefixDisk
from inference.engine.prompt_problem import prompt_problem
from inference.engine.sampling.pending_grammars import GrammarSource, PendingGrammars
from inference.engine.sampling.sampled import Sampled
from inference.engine.scheduling.rates import PrefillAverage
from inference.engine.scheduling.run_ahead import RunAhead
from inference.engine.scheduling.scheduler import Schedule, Scheduler
from inference.engine.scheduling.sequence import Sequence, SequenceState
from inference.engine.scheduling.step_times import StepTimes
from inference.models.vision_config import VisionConfig
from inference.protocol.engine import (
    CancelSequence,
    EngineStats,
    SequenceCancelled,
    SequenceStep,
    StepOutputs,
    SubmitSequence,
)

COMPILE_WAIT_S = 0.005
"""How long a step waits for a grammar when it has nothing else to do."""


class Executor(Protocol):
    """The tensor half of a step."""

    def execute(self, schedule: Schedule) -> Sampled:
        """Run the step's rows and sample one token per sequence of ``schedule.sampled``. Where it
        raises nothing has moved: its rows can be run again, together or apart, and give what they
        would have given."""
        ...

    def recover(self, error: Exception) -> StepFault:
        """What ``error``, raised by ``execute``, says of the step and the device. Frees what the
        attempt held."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """``sequence`` ended: drop what is kept for it."""
        ...


@dataclass(frozen=True, slots=True)
class EngineLimits:
    context_tokens: int
    """Prompt plus output of one sequence."""
    vocab_size: int
    vision: VisionConfig | None = None
    """Of a model that is given images."""


class Engine:
    def __init__(
        self,
        executor: Executor,
        scheduler: Scheduler,
        limits: EngineLimits,
        *,
        run_ahead: RunAhead[Any] | None = None,
        grammars: GrammarSource | None = None,
        adapters: Adapters | None = None,
        prefix_disk: PrefixDisk | None = None,
        prefill_average: PrefillAverage | None = None,
        clock: Callable[[], float] = time.monotonic,
        check_when_idle: bool = False,
    ) -> None:
        self._executor = executor
        self._scheduler = scheduler
        self._limits = limits
        self._run_ahead = run_ahead
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
        self._numerical_watch = NumericalWatch()

    @property
    def has_work(self) -> bool:
        if self._sequences or self._outputs:
            return True
        return self._prefix_disk is not None and self._prefix_disk.has_unwritten

    @property
    def has_prompts(self) -> bool:
        """Whether prompts wait or are being computed: a step with them takes long."""
        return self._scheduler.has_prompts

    def step(self) -> StepOutputs:
        """Advance every sequence that can be; those at fault when the device refuses fail alone.
        Raises ``StepFault`` where the device is not sound: then the engine is lost."""
        started_s = self._clock()
        self._fail_overdue(started_s)
        self._take_compiled()
        self._take_adapters()
        if self._prefix_disk is not None:
            self._prefix_disk.before_step()
        schedule, execute = self._next_schedule()
        if schedule.is_empty:
            self._wait()
        else:
            if self._run_ahead is not None and self._run_ahead.is_ahead:
                started_s = self._step_end_s  # until then the device had another
            for chunk in schedule.prefills:
                if chunk.sequence.started_s is None:
                    chunk.sequence.started_s = started_s
            outcome = contain(schedule, execute, self._executor.recover, divide_schedule)
            self._step_end_s = self._clock()
            self._settle(outcome)
            if outcome.faults:
                self._times.record_in_parts(schedule, outcome.faults)
            else:
                self._record_time(schedule, outcome, self._step_end_s - started_s)
        if self._prefix_disk is not None:
            self._prefix_disk.after_step()
        if self._check_when_idle and not self._sequences:
            self._scheduler.check_integrity()
        return self.take_outputs()

    def submit(self, command: SubmitSequence) -> None:
        """Queue a sequence, or refuse it by an event in the next step's outputs."""
        if (refusal := self._refusal(command)) is not None:
            self._outputs.fail(command.sequence_id, *refusal)
            return
        self._num_submitted += 1
        sequence = Sequence(
            command.sequence_id,
            command.token_ids,
            command.params,
            context_tokens=self._limits.context_tokens,
            arrival=self._num_submitted,
            deadline_s=self._clock() + self._scheduler.limits.max_queue_wait_s,
            # One that has ended already cannot be waited for, nor need it be.
            same_prompt_as=self._sequences.get(command.same_prompt_as or ""),
            account=command.account,
            weight=command.weight,
            is_anonymous=command.is_anonymous,
            cache_salt=command.cache_salt,
            images=self._images(command),
            prediction=command.prediction,
        )
        self._sequences[command.sequence_id] = sequence
        self._pending_grammars.add(sequence)
        if command.adapter is not None:
            self._adapters.add(sequence, command.adapter)
        if self._prefix_disk is not None and not command.images:
            self._prefix_disk.add(sequence)
        self._scheduler.add(sequence)

    def close(self) -> None:
        """Nothing more will be asked of it: what is to be on disk is written."""
        if self._prefix_disk is not None:
            self._prefix_disk.flush()

    def drop_adapter(self, name: str) -> None:
        """It leaves its slot once no sequence has it. One that is not here: nothing to do."""
        self._adapters.drop(name)

    def cancel(self, command: CancelSequence) -> None:
        """Free what the sequence holds, now. An unknown id has already ended: nothing to do."""
        if (sequence := self._sequences.get(command.sequence_id)) is None:
            return
        self._scheduler.end(sequence)
        self._forget(sequence)
        cancelled = SequenceCancelled(sequence_id=command.sequence_id, used=sequence.usage())
        self._outputs.add(cancelled)

    def cancel_all(self) -> StepOutputs:
        for sequence_id in list(self._sequences):
            self.cancel(CancelSequence(sequence_id=sequence_id))
        return self.take_outputs()

    def stats(self) -> EngineStats:
        allocator = self._scheduler.kv_cache.allocator
        times, average, now_s = self._times, self._times.prefill_average, self._clock()
        return EngineStats(
            in_flight=len(self._scheduler.running),
            queue_depth=len(self._scheduler.waiting),
            kv_blocks_used=allocator.num_used,
            kv_blocks_total=allocator.num_blocks,
            decode_tokens_per_s=times.rates.decode_tokens_per_s(now_s),
            prefill_tokens_per_s=times.rates.prefill_tokens_per_s(now_s),
            last_forward_unix_s=times.last_forward_unix_s,
            num_preemptions=self._scheduler.num_preemptions,
            prefix_hit_tokens=self._scheduler.prefix_hit_tokens,
            prefill_speed=average.speed if average is not None else None,
            adapters=self._adapters.names,
            num_drafted_tokens=self._scheduler.num_drafted_tokens,
            num_accepted_drafts=self._scheduler.num_accepted_drafts,
        )

    def check_integrity(self) -> None:
        self._scheduler.check_integrity()

    @property
    def has_outputs(self) -> bool:
        """Refusals and cancellations that nobody has been told of."""
        return bool(self._outputs)

    def take_outputs(self) -> StepOutputs:
        return self._outputs.take(self.stats())

    def _refusal(self, command: SubmitSequence) -> tuple[str, str] | None:
        """Code and message."""
        limits = self._limits
        problem = prompt_problem(
            command.token_ids, vocab_size=limits.vocab_size, context_tokens=limits.context_tokens
        )
        problem = problem or image_problem(command.images, command.token_ids, limits.vision)
        if problem is not None:
            return problem
        if command.adapter is not None and (reason := self._adapters.problem()) is not None:
            return "model_load_failed", reason
        waiting, queue = self._scheduler.waiting, self._scheduler.limits
        if self._scheduler.is_full:
            return "queue_full", f"{len(waiting)} sequences are waiting, as many as may"
        if self._scheduler.is_full_for(command.account):
            return "rate_limit_exceeded", (
                f"{waiting.num_of(command.account)} sequences of this account are waiting; one "
                f"account may have {queue.max_queue_depth_per_account} of the "
                f"{queue.max_queue_depth} places"
            )
        if command.sequence_id in self._sequences:
            return "engine_error", "a sequence with this sequence id is running"
        return None

    def _images(self, command: SubmitSequence) -> PromptImages | None:
        vision = self._limits.vision
        if vision is None or not command.images:
            return None
        return PromptImages(command.images, len(command.token_ids), vision.merge)

    def _next_schedule(self) -> tuple[Schedule, Callable[[Schedule], Sampled]]:
        """And what executes it."""
        pacer = self._times.pacer
        if self._run_ahead is None:
            return self._scheduler.schedule(pacer), self._executor.execute
        return self._run_ahead.next_schedule(pacer), self._run_ahead.execute

    def _record_time(
        self, schedule: Schedule, outcome: Outcome[Schedule, Sampled], step_s: float
    ) -> None:
        """Of a step that ran whole."""
        num_run_tokens = sum(sampled.num_run_tokens for _, sampled in outcome.done)
        self._times.record(
            schedule, step_s=step_s, now_s=self._clock(), num_run_tokens=num_run_tokens
        )
        speculator = self._scheduler.speculator
        if speculator is not None and not schedule.prefills:
            speculator.record_step(schedule.num_decode_rows, step_s)

    def _settle(self, outcome: Outcome[Schedule, Sampled]) -> None:
        """Commit and emit what ran, end what is at fault."""
        for part, sampled in outcome.done:
            self._scheduler.commit(part, sampled.token_ids, sampled.runs)
            self._emit_runs(part, sampled)
            for sequence_id, logprobs in sampled.prompt_logprobs.items():
                step = SequenceStep(sequence_id=sequence_id, token_ids=[], prompt_logprobs=logprobs)
                self._outputs.add(step)
            self._emit(part, sampled)
        for part, fault in outcome.failed:
            for sequence in part.sequences:
                self._scheduler.end(sequence)
                self._fail(sequence, fault.code, fault.client_message)
        self._numerical_watch.record(
            num_rows=sum(len(sampled.token_ids) for _, sampled in outcome.done),
            num_failed=sum(len(sampled.failed) for _, sampled in outcome.done),
        )

    def _emit_runs(self, schedule: Schedule, sampled: Sampled) -> None:
        """Drafts that turned out right, before the token that the step ends with."""
        for row, run in sampled.runs.items():
            sequence = schedule.decodes[row]
            self._outputs.add(
                SequenceStep(
                    sequence_id=sequence.sequence_id,
                    token_ids=run.token_ids,
                    logprobs=run.logprobs or None,
                    num_drafted_tokens=len(schedule.drafts[sequence]),
                    num_accepted_drafts=len(run.token_ids),
                )
            )

    def _emit(self, schedule: Schedule, sampled: Sampled) -> None:
        """One ``SequenceStep`` per sequence that got a token; end those that are done."""
        ended: list[Sequence] = []
        for row, sequence in enumerate(schedule.sampled):
            if sequence.state is SequenceState.ENDED:
                continue  # since the step was launched
            if (failure := sampled.failure(row)) is not None:
                if row in sampled.failed:
                    self._scheduler.kv_cache.distrust(sequence)
                ended.append(sequence)
                self._fail(sequence, *failure, num_unusable_tokens=1)
                continue
            token_id = sequence.token_ids[-1]
            is_stop = token_id in sequence.stop_ids or row in sampled.ended
            is_complete = is_stop or row in sampled.complete
            is_end = is_complete or len(sequence.token_ids) >= sequence.max_length
            num_output_tokens = sequence.num_output_tokens
            if num_output_tokens == 1:
                sequence.first_token_s = self._step_end_s
            logprob = sampled.logprobs.get(row)
            self._outputs.add(
                SequenceStep(
                    sequence_id=sequence.sequence_id,
                    token_ids=[] if is_stop else [token_id],
                    logprobs=None if logprob is None or is_stop else [logprob],
                    num_cached_tokens=sequence.num_cached_tokens
                    if num_output_tokens == 1
                    else None,
                    finish_reason="stop" if is_complete else "length" if is_end else None,
                    num_output_tokens=num_output_tokens if is_end else 0,
                    timing=sequence.timing(self._step_end_s) if is_end else None,
                    # Of a sequence with a run, that says it.
                    num_drafted_tokens=0
                    if row in sampled.runs
                    else len(schedule.drafts.get(sequence, ())),
                )
            )
            if is_end:
                ended.append(sequence)
                self._forget(sequence)
        self._scheduler.end_many(ended)

    def _wait(self) -> None:
        """For what a sequence waits for, when there is nothing else to do."""
        if self._prefix_disk is not None and self._prefix_disk.wait(COMPILE_WAIT_S):
            return
        if not self._adapters.wait(COMPILE_WAIT_S):
            self._pending_grammars.wait(COMPILE_WAIT_S)

    def _take_compiled(self) -> None:
        """Let sequences start whose grammar is compiled, and fail those whose does not compile."""
        for sequence, problem in self._pending_grammars.take_done():
            self._scheduler.end(sequence)
            self._fail(sequence, "invalid_grammar", problem)

    def _take_adapters(self) -> None:
        """The same of adapters."""
        for sequence, problem in self._adapters.take_done():
            self._scheduler.end(sequence)
            self._fail(sequence, "model_load_failed", problem)

    def _fail_overdue(self, now_s: float) -> None:
        for sequence in self._scheduler.overdue(now_s):
            self._scheduler.end(sequence)
            wait_s = self._scheduler.limits.max_queue_wait_s
            self._fail(sequence, "queue_timeout", f"waited {wait_s:g} s without starting")

    def _fail(
        self, sequence: Sequence, code: str, message: str, *, num_unusable_tokens: int = 0
    ) -> None:
        self._forget(sequence)
        used = sequence.usage(num_unusable_tokens=num_unusable_tokens)
        self._outputs.fail(sequence.sequence_id, code, message, used)

    def _forget(self, sequence: Sequence) -> None:
        del self._sequences[sequence.sequence_id]
        self._pending_grammars.forget(sequence)
        self._adapters.forget(sequence)
        if self._prefix_disk is not None:
            self._prefix_disk.forget(sequence)
        self._executor.forget(sequence)
