"""Samples the rows of a step with drafts: each token as the sampler would have, had the ones before
it come one by one.

    draft  a b c        rows  [ last token ][ a ][ b ][ c ]
                        token      a          b    x           a and b were right, x is new

A row counts only if all drafts before it turned out right, so a token depends on nothing that was
guessed, and on the same random number as without drafts: greedy or not, a draft changes no answer,
only how many steps it takes. That is rejection sampling for proposals that are certain of
themselves: a draft is taken with the model's own probability of it.

Rows whose token is the largest logit's are verified all at once, others a round after the other: a
token that a grammar, a penalty or a thinking budget decides depends on the one before.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from inference.engine.emission import Run, Sampled
from inference.engine.sampling.logits_processors import needs_sampler
from inference.engine.sampling.sampler import SampledTokens, Sampler
from inference.engine.scheduling.schedule import Schedule
from inference.engine.scheduling.sequence import Sequence
from inference.models.to_device import rows_of
from inference.protocol.sampling import TokenLogprob

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SampledDrafts:
    """A step's sequences with their drafts, and the tokens of its first round."""

    sequences: list[Sequence]
    drafts: list[list[int]]
    """The drafts of each sequence; empty: it has none."""
    logits: torch.Tensor
    first_rows: list[int]
    """The first row of each sequence in ``logits``."""
    num_first: list[int]
    """How many of each sequence's rows are in the first round."""
    first: SampledTokens


def choose_drafted(sampler: Sampler, schedule: Schedule, logits: torch.Tensor) -> SampledDrafts:
    """``logits`` (num_decode_rows, vocab_size) float32, a sequence's rows one after the other.
    Waits for nothing on the device."""
    sequences = schedule.decodes
    drafts = [schedule.drafts.get(sequence, []) for sequence in sequences]
    first_rows: list[int] = []
    num_first: list[int] = []
    rows: list[int] = []
    of_rows: list[Sequence] = []
    next_row = 0
    for sequence, draft in zip(sequences, drafts, strict=True):
        count = len(draft) + 1 if _is_plain(sequence) else 1
        first_rows.append(next_row)
        num_first.append(count)
        rows += range(next_row, next_row + count)
        of_rows += [sequence] * count
        next_row += len(draft) + 1
    first = logits if len(rows) == len(logits) else rows_of(logits, rows)
    unread = sampler.choose(of_rows, first)
    return SampledDrafts(sequences, drafts, logits, first_rows, num_first, unread)


def read_drafted(sampler: Sampler, choice: SampledDrafts) -> Sampled:
    """One row for each sequence: its last that counts; see ``Sampled``."""
    first = sampler.read(choice.first)
    verified = _Verified(choice)
    row, going_on = 0, []
    for index, count in enumerate(choice.num_first):
        for depth in range(count):
            if not verified.take(index, depth, first, row + depth):
                break
        else:
            going_on.append(index)
        row += count
    depth = 1
    while going_on := [i for i in going_on if depth <= len(choice.drafts[i])]:
        round_ = _sample_round(sampler, choice, going_on, depth)
        if round_ is None:
            break
        going_on = [
            index for at, index in enumerate(going_on) if verified.take(index, depth, round_, at)
        ]
        depth += 1
    return verified.sampled()


def _sample_round(
    sampler: Sampler, choice: SampledDrafts, going_on: list[int], depth: int
) -> Sampled | None:
    """``None`` where it raises: the tokens before are right, and the same rows come first in the
    next step, which isolates the row at fault."""
    sequences = [choice.sequences[index] for index in going_on]
    rows = [choice.first_rows[index] + depth for index in going_on]
    try:
        logits = rows_of(choice.logits, rows)
        return sampler.read(sampler.choose(sequences, logits, num_ahead=depth))
    except Exception:  # whatever an operator raises
        log.exception("drafts were not looked at")
        return None


class _Verified:
    """The verified tokens of each sequence so far."""

    def __init__(self, choice: SampledDrafts) -> None:
        self._choice = choice
        self._token_ids = [0] * len(choice.sequences)
        self._logprobs: dict[int, TokenLogprob] = {}
        self._runs: dict[int, Run] = {}
        self._failed: dict[int, int] = {}
        self._complete: set[int] = set()
        self._ended: set[int] = set()
        self._broken: dict[int, str] = {}

    def sampled(self) -> Sampled:
        return Sampled(
            self._token_ids,
            self._failed,
            self._logprobs,
            frozenset(self._complete),
            self._ended,
            self._broken,
            runs=self._runs,
        )

    def take(self, index: int, depth: int, found: Sampled, row: int) -> bool:
        """``row`` of ``found`` is the sequence's at ``depth``. Returns whether the next one counts:
        this token was drafted, and nothing ends with it."""
        draft = self._choice.drafts[index]
        if depth:
            run = self._runs.setdefault(index, Run())
            run.token_ids.append(draft[depth - 1])
            if (logprob := self._logprobs.pop(index, None)) is not None:
                run.logprobs.append(logprob)
        token_id = self._token_ids[index] = found.token_ids[row]
        if (logprob := found.logprobs.get(row)) is not None:
            self._logprobs[index] = logprob
        if self._is_over(index, found, row):
            return False
        is_stop = token_id in self._choice.sequences[index].stop_ids
        return not is_stop and depth < len(draft) and token_id == draft[depth]

    def _is_over(self, index: int, found: Sampled, row: int) -> bool:
        if row in found.failed:
            self._failed[index] = found.failed[row]
        elif row in found.broken:
            self._broken[index] = found.broken[row]
        elif row in found.ended:
            self._ended.add(index)
        elif row in found.complete:
            self._complete.add(index)
        else:
            return False
        return True


def _is_plain(sequence: Sequence) -> bool:
    """Whether its tokens are its rows' largest logits', whatever the ones before were."""
    return (
        sequence.grammar is None
        and sequence.params.top_logprobs is None
        and not needs_sampler(sequence)
    )
