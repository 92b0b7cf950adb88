"""From what a step sampled to what clients are told: a ``SequenceStep`` for each sequence that got
tokens. Ends nobody: that is the engine's.
"""

from __future__ import annotations

from inference.engine.pending_outputs import PendingOutputs
from inference.engine.sampling.sampled import Sampled
from inference.engine.scheduling.schedule import Schedule
from inference.engine.scheduling.sequence import Sequence, SequenceState
from inference.protocol.engine import SequenceStep


def emit_step(
    schedule: Schedule, sampled: Sampled, outputs: PendingOutputs, step_end_s: float
) -> tuple[list[Sequence], list[tuple[int, Sequence]]]:
    """Adds to ``outputs`` once the step is committed. Those whose answer is done, and, with their
    rows, those that got no usable token."""
    _emit_runs(schedule, sampled, outputs)
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
                finish_reason="stop" if is_complete else "length" if is_end else None,
                num_output_tokens=num_output_tokens if is_end else 0,
                timing=sequence.timing(step_end_s) if is_end else None,
                # Of a sequence with a run, that says it.
                num_drafted_tokens=0
                if row in sampled.runs
                else len(schedule.drafts.get(sequence, ())),
            )
        )
        if is_end:
            ended.append(sequence)
    return ended, failed


def _emit_runs(schedule: Schedule, sampled: Sampled, outputs: PendingOutputs) -> None:
    """Drafts that turned out right, before the token that the step ends with."""
    for row, run in sampled.runs.items():
        sequence = schedule.decodes[row]
        outputs.add(
            SequenceStep(
                sequence_id=sequence.sequence_id,
                token_ids=run.token_ids,
                logprobs=run.logprobs or None,
                num_drafted_tokens=len(schedule.drafts[sequence]),
                num_accepted_drafts=len(run.token_ids),
            )
        )
