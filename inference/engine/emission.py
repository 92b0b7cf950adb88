"""Turns a step's sampled tokens, which are plain values, into events: a ``SequenceStep`` for each
sequence that got tokens. ``PendingOutputs`` queues the events for the neuron. Knows no tensors."""

from __future__ import annotations

from dataclasses import dataclass, field

from inference.engine.faults.kinds import NumericalFault
from inference.engine.schedule import Schedule
from inference.engine.sequence import Sequence, SequenceState
from inference.protocol.engine import (
    EngineStats,
    SequenceCancelled,
    SequenceFailed,
    SequencesEmbedded,
    SequenceStep,
    SequenceUsage,
    StepOutputs,
)
from inference.protocol.sampling import TokenLogprob


@dataclass(slots=True)
class AcceptedDrafts:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token per row of a step's logits. Where a sequence had drafts, its row is its last that
    counts. Token ids of failed, ended and broken rows mean nothing."""

    token_ids: list[int]
    failed: dict[int, int]
    """Rows whose logits were not numbers, and how many were not finite."""
    logprobs: dict[int, TokenLogprob]
    complete: set[int] = field(default_factory=set)
    """Rows whose grammar allows nothing after this token."""
    ended: set[int] = field(default_factory=set)
    """Rows whose grammar allowed nothing but the end."""
    broken: dict[int, str] = field(default_factory=dict)
    """Rows whose grammar could not be followed, and why."""
    prompt_logprobs: dict[str, list[TokenLogprob]] = field(default_factory=dict)
    """The log probabilities of prompts that asked for them, by sequence id."""
    accepted: dict[int, AcceptedDrafts] = field(default_factory=dict)
    """The accepted drafts before a row's token, by row."""

    @property
    def num_accepted_drafts(self) -> int:
        return sum(len(drafts.token_ids) for drafts in self.accepted.values())

    def failure(self, row: int) -> tuple[str, str] | None:
        if row in self.failed:
            num_logits = self.failed[row]
            counted = f"{NumericalFault.client_message}: {num_logits} logits are not finite"
            return NumericalFault.code, counted
        problem = self.broken.get(row)
        return None if problem is None else ("invalid_grammar", problem)


Output = SequenceStep | SequencesEmbedded | SequenceFailed | SequenceCancelled
NOTHING_USED = SequenceUsage()


class PendingOutputs:
    """The outputs not yet sent to the neuron, oldest first. True while there are any."""

    def __init__(self) -> None:
        self._outputs: list[Output] = []

    def __bool__(self) -> bool:
        return bool(self._outputs)

    def add(self, output: Output) -> None:
        self._outputs.append(output)

    def fail(
        self, sequence_id: str, code: str, message: str, used: SequenceUsage = NOTHING_USED
    ) -> None:
        self.add(SequenceFailed(sequence_id=sequence_id, code=code, message=message, used=used))

    def take(self, stats: EngineStats) -> StepOutputs:
        outputs, self._outputs = self._outputs, []
        return StepOutputs(outputs=outputs, stats=stats)


def emit_step(
    schedule: Schedule, sampled: Sampled, outputs: PendingOutputs, step_end_s: float
) -> tuple[list[Sequence], list[tuple[int, Sequence]]]:
    """Adds the events of a committed step to ``outputs``. Returns the sequences whose answer is
    done, and, with their rows, those that got no usable token. Ends none of them."""
    _emit_accepted(schedule, sampled, outputs)
    for sequence_id, logprobs in sampled.prompt_logprobs.items():
        outputs.add(SequenceStep(sequence_id=sequence_id, token_ids=[], prompt_logprobs=logprobs))
    ended: list[Sequence] = []
    failed: list[tuple[int, Sequence]] = []
    for row, sequence in enumerate(schedule.sampled):
        if sequence.state is SequenceState.ENDED:
            continue  # since the step was launched
        if sampled.failure(row) is not None:
            failed.append((row, sequence))
            continue
        token_id = sequence.token_ids[-1]
        is_stop = token_id in sequence.stop_ids or row in sampled.ended
        is_complete = is_stop or row in sampled.complete
        is_end = is_complete or len(sequence.token_ids) >= sequence.max_length
        num_output_tokens = sequence.num_output_tokens
        if num_output_tokens == 1:
            sequence.first_token_s = step_end_s
        logprob = sampled.logprobs.get(row)
        outputs.add(
            SequenceStep(
                sequence_id=sequence.sequence_id,
                token_ids=[] if is_stop else [token_id],
                logprobs=None if logprob is None or is_stop else [logprob],
                num_cached_tokens=sequence.num_cached_tokens if num_output_tokens == 1 else None,
                prefill_ms=sequence.prefill_ms(step_end_s) if num_output_tokens == 1 else None,
                finish_reason="stop" if is_complete else "length" if is_end else None,
                num_output_tokens=num_output_tokens if is_end else 0,
                timing=sequence.timing(step_end_s) if is_end else None,
                # The event of the accepted drafts already reported this.
                num_drafted_tokens=0
                if row in sampled.accepted
                else len(schedule.drafts.get(sequence, ())),
            )
        )
        if is_end:
            ended.append(sequence)
    return ended, failed


def _emit_accepted(schedule: Schedule, sampled: Sampled, outputs: PendingOutputs) -> None:
    for row, drafts in sampled.accepted.items():
        sequence = schedule.decodes[row]
        outputs.add(
            SequenceStep(
                sequence_id=sequence.sequence_id,
                token_ids=drafts.token_ids,
                logprobs=drafts.logprobs or None,
                num_drafted_tokens=len(schedule.drafts[sequence]),
                num_accepted_drafts=len(drafts.token_ids),
            )
        )
