"""The tensor half of a step, from a schedule to sampled tokens.

Rows of a step with drafts are sampled as if the tokens before each had come one by one:

    draft  a b c        rows  [ last token ][ a ][ b ][ c ]
                        token      a          b    x           a and b were right, x is new

A row counts only if all drafts before it are accepted, and uses the same random number as without
drafts, so a draft changes no answer. This is rejection sampling for proposals of probability 1.

Rows whose token is the largest logit's are verified all at once, others one round after the other:
a token that a grammar, a penalty or a thinking budget decides depends on the one before.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from itertools import accumulate

import torch

from inference.engine.errors import StepFault
from inference.engine.faults import recover
from inference.engine.logits_processors import is_free_of_host, needs_sampler
from inference.engine.model_runner import ModelRunner
from inference.engine.sampler import SampledTokens, Sampler, prompt_logprobs
from inference.engine.sequence import Sequence
from inference.engine.step import AcceptedDrafts, Sampled, Schedule
from inference.models.step_input import on_device, rows_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    schedule: Schedule
    logits: torch.Tensor
    unread: SampledTokens | None
    """``None`` with drafts, which are sampled when they are read."""

    def token_ids_of(self, sequences: list[Sequence]) -> torch.Tensor:
        """(num_sequences,) int64, on the device."""
        assert self.unread is not None, "nothing starts from unread drafts"
        token_ids, sampled = self.unread.token_ids(), self.unread.sequences
        if sequences == sampled:
            return token_ids
        row_of = {sequence.sequence_id: row for row, sequence in enumerate(sampled)}
        rows = [row_of[sequence.sequence_id] for sequence in sequences]
        return token_ids.index_select(0, on_device(rows, torch.int64, token_ids.device))


class TensorExecutor:
    def __init__(self, runner: ModelRunner, sampler: Sampler, device: torch.device) -> None:
        self.runner = runner
        self.sampler = sampler
        self._device = device

    def execute(self, schedule: Schedule) -> Sampled:
        """Samples one token per sequence of ``schedule.sampled``. If it raises, no state has
        changed: the rows can be run again, together or apart, with the same results."""
        return self.read(self.launch(schedule))

    def launch(self, schedule: Schedule, after: LaunchedStep | None = None) -> LaunchedStep:
        """Does not wait. ``after``: an unread step, from whose tokens this one's rows start."""
        unread_ids = None if after is None else after.token_ids_of(schedule.decodes)
        logits = self.runner.run(schedule, unread_ids)
        return self._choose(schedule, logits, num_ahead=0 if after is None else 1)

    def sample(self, schedule: Schedule, logits: torch.Tensor) -> Sampled:
        return self.read(self._choose(schedule, logits, num_ahead=0))

    def read(self, step: LaunchedStep) -> Sampled:
        if step.unread is None:
            return _sample_drafted(self.sampler, step.schedule, step.logits)
        sampled, chunks = self.sampler.read(step.unread), step.schedule.prefills
        if not any(chunk.scored for chunk in chunks):
            return sampled
        logits = step.logits[len(step.unread.sequences) :]
        return replace(sampled, prompt_logprobs=prompt_logprobs(chunks, logits))

    def _choose(self, schedule: Schedule, logits: torch.Tensor, *, num_ahead: int) -> LaunchedStep:
        if schedule.drafts:
            return LaunchedStep(schedule, logits, None)
        sampled = schedule.sampled
        unread = self.sampler.choose(sampled, logits[: len(sampled)], num_ahead=num_ahead)
        return LaunchedStep(schedule, logits, unread)

    def is_settled(self, sequence: Sequence) -> bool:
        return is_free_of_host(sequence)

    def recover(self, error: Exception) -> StepFault:
        """Classifies an error of ``execute``, and frees the memory of the attempt."""
        return recover(error, self._device.type)

    def forget(self, sequence: Sequence) -> None:
        self.runner.forget(sequence)
        self.sampler.forget(sequence)


def _sample_drafted(sampler: Sampler, schedule: Schedule, logits: torch.Tensor) -> Sampled:
    """Returns a row for each of ``schedule.decodes``: its last that counts; see ``Sampled``.
    ``logits`` (num_decode_rows, vocab_size) float32, a sequence's rows one after the other."""
    sequences = schedule.decodes
    num_drafted = [len(schedule.drafts.get(sequence, ())) for sequence in sequences]
    first_rows = list(accumulate((num + 1 for num in num_drafted), initial=0))
    counts = [
        num + 1 if _is_plain(sequence) else 1
        for sequence, num in zip(sequences, num_drafted, strict=True)
    ]
    rows = [
        first + depth for first, n in zip(first_rows, counts, strict=False) for depth in range(n)
    ]
    owners = [sequence for sequence, n in zip(sequences, counts, strict=True) for _ in range(n)]
    found = sampler.sample(owners, logits if len(rows) == len(logits) else rows_of(logits, rows))
    verified = Sampled([0] * len(sequences), {}, {})
    row, remaining = 0, []
    for index, count in enumerate(counts):
        for depth in range(count):
            if not _take(schedule, verified, index, depth, found, row + depth):
                break
        else:
            remaining.append(index)
        row += count
    depth = 1
    while remaining := [index for index in remaining if depth <= num_drafted[index]]:
        rows = [first_rows[index] + depth for index in remaining]
        owners = [sequences[index] for index in remaining]
        try:
            found = sampler.read(sampler.choose(owners, rows_of(logits, rows), num_ahead=depth))
        except Exception:  # whatever an operator raises
            # The tokens before are right, and the same rows come first in the next step, which
            # isolates the row at fault.
            log.exception("drafts were not verified")
            break
        remaining = [
            index
            for at, index in enumerate(remaining)
            if _take(schedule, verified, index, depth, found, at)
        ]
        depth += 1
    return verified


def _take(
    schedule: Schedule, verified: Sampled, index: int, depth: int, found: Sampled, row: int
) -> bool:
    """Returns whether the next row counts: this token was drafted, and nothing ends with it."""
    sequence = schedule.decodes[index]
    draft = schedule.drafts.get(sequence, [])
    if depth:
        accepted = verified.accepted.setdefault(index, AcceptedDrafts())
        accepted.token_ids.append(draft[depth - 1])
        if (logprob := verified.logprobs.pop(index, None)) is not None:
            accepted.logprobs.append(logprob)
    token_id = verified.token_ids[index] = found.token_ids[row]
    if (logprob := found.logprobs.get(row)) is not None:
        verified.logprobs[index] = logprob
    if (end := found.ends.get(row)) is not None:
        verified.ends[index] = end
        return False
    return token_id not in sequence.stop_ids and depth < len(draft) and token_id == draft[depth]


def _is_plain(sequence: Sequence) -> bool:
    return (
        sequence.grammar is None
        and sequence.params.top_logprobs is None
        and not needs_sampler(sequence)
    )
