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
from itertools import accumulate

import torch

from inference.engine.sampling.logits_processors import needs_sampler
from inference.engine.sampling.sampler import Sampler
from inference.engine.sequence import Sequence
from inference.engine.step import AcceptedDrafts, Sampled, Schedule
from inference.models.step_input import rows_of

log = logging.getLogger(__name__)


def sample_drafted(sampler: Sampler, schedule: Schedule, logits: torch.Tensor) -> Sampled:
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
    """Adds ``row`` of ``found``, which is the sequence's at ``depth``, to ``verified``. Returns
    whether the next row counts: this token was drafted, and nothing ends with it."""
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
    if row in found.failed:
        verified.failed[index] = found.failed[row]
    elif row in found.broken:
        verified.broken[index] = found.broken[row]
    elif row in found.ended:
        verified.ended.add(index)
    elif row in found.complete:
        verified.complete.add(index)
    else:
        is_stop = token_id in sequence.stop_ids
        return not is_stop and depth < len(draft) and token_id == draft[depth]
    return False


def _is_plain(sequence: Sequence) -> bool:
    """Whether its tokens are the largest logits of its rows, whatever the ones before were."""
    return (
        sequence.grammar is None
        and sequence.params.top_logprobs is None
        and not needs_sampler(sequence)
    )
