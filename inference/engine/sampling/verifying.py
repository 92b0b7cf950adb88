"""Samples the rows of a step with drafts, each as if the tokens before it had come one by one.

    draft  a b c        rows  [ last token ][ a ][ b ][ c ]
                        token      a          b    x           a and b were right, x is new

A row counts only if all drafts before it are accepted, and uses the same random number as without
drafts: greedy or not, a draft changes no answer, only the number of steps. This is rejection
sampling for proposals of probability 1: a draft is accepted with the model's own probability of it.

Rows whose token is the largest logit's are verified all at once, others one round after the other:
a token that a grammar, a penalty or a thinking budget decides depends on the one before.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from inference.engine.emission import AcceptedDrafts, Sampled
from inference.engine.sampling.logits_processors import needs_sampler
from inference.engine.sampling.sampler import SampledTokens, Sampler
from inference.engine.scheduling.schedule import Schedule
from inference.engine.scheduling.sequence import Sequence
from inference.models.to_device import rows_of

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
    """The number of each sequence's rows in the first round."""
    first: SampledTokens


def choose_drafted(sampler: Sampler, schedule: Schedule, logits: torch.Tensor) -> SampledDrafts:
    """``logits`` (num_decode_rows, vocab_size) float32, a sequence's rows one after the other.
    Does not wait for the device."""
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
    """Returns a row for each sequence: its last that counts; see ``Sampled``."""
    first = sampler.read(choice.first)
    verified = Sampled([0] * len(choice.sequences), {}, {})
    row, remaining = 0, []
    for index, count in enumerate(choice.num_first):
        for depth in range(count):
            if not _take(choice, verified, index, depth, first, row + depth):
                break
        else:
            remaining.append(index)
        row += count
    depth = 1
    while remaining := [i for i in remaining if depth <= len(choice.drafts[i])]:
        round_ = _sample_round(sampler, choice, remaining, depth)
        if round_ is None:
            break
        remaining = [
            index
            for at, index in enumerate(remaining)
            if _take(choice, verified, index, depth, round_, at)
        ]
        depth += 1
    return verified


def _sample_round(
    sampler: Sampler, choice: SampledDrafts, remaining: list[int], depth: int
) -> Sampled | None:
    """``None`` where it raises: the tokens before are right, and the same rows come first in the
    next step, which isolates the row at fault."""
    sequences = [choice.sequences[index] for index in remaining]
    rows = [choice.first_rows[index] + depth for index in remaining]
    try:
        logits = rows_of(choice.logits, rows)
        return sampler.read(sampler.choose(sequences, logits, num_ahead=depth))
    except Exception:  # whatever an operator raises
        log.exception("drafts were not verified")
        return None


def _take(
    choice: SampledDrafts, verified: Sampled, index: int, depth: int, found: Sampled, row: int
) -> bool:
    """Adds ``row`` of ``found``, which is the sequence's at ``depth``, to ``verified``. Returns
    whether the next row counts: this token was drafted, and nothing ends with it."""
    draft = choice.drafts[index]
    if depth:
        accepted = verified.accepted.setdefault(index, AcceptedDrafts())
        accepted.token_ids.append(draft[depth - 1])
        if (logprob := verified.logprobs.pop(index, None)) is not None:
            accepted.logprobs.append(logprob)
    token_id = verified.token_ids[index] = found.token_ids[row]
    if (logprob := found.logprobs.get(row)) is not None:
        verified.logprobs[index] = logprob
    if row in found.failed:
        verified.failed[index] = found.failed[row]
    elif row in found.broken:
        verified.broken[index] = found.broken[row]
    elif row in found.ended:
        verified.ended.add(index)
    elif row in found.complete:
        verified.complete.add(index)
    else:
        is_stop = token_id in choice.sequences[index].stop_ids
        return not is_stop and depth < len(draft) and token_id == draft[depth]
    return False


def _is_plain(sequence: Sequence) -> bool:
    """Whether its tokens are the largest logits of its rows, whatever the ones before were."""
    return (
        sequence.grammar is None
        and sequence.params.top_logprobs is None
        and not needs_sampler(sequence)
    )
