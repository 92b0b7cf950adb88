"""What a sequence's parameters ask of the sampler: whether its token is more than the largest raw
logit's, and whether the host has a part in it. Pure: no tensors."""

from __future__ import annotations

from inference.engine.sampling.penalties import has_penalties
from inference.engine.scheduling.sequence import Sequence


def is_special(sequence: Sequence) -> bool:
    """Whether the answer may be another token than the one with the largest raw logit, whatever a
    grammar says to it."""
    params = sequence.params
    return not params.is_greedy or params.thinking_limit is not None or _has_wishes(sequence)


def is_adjusted(sequence: Sequence) -> bool:
    """Whether anything is added to its logits."""
    has_mask = sequence.grammar is not None and sequence.grammar.is_active
    return has_mask or _has_wishes(sequence)


def is_refused(token_id: int, sequence: Sequence) -> bool:
    """Whether the grammar forbids the largest raw logit's token, which nearly never happens to a
    model that knows what it writes; else nobody needs a mask."""
    if sequence.grammar is None or is_special(sequence):
        return False
    return not sequence.grammar.allows(token_id)


def is_free_of_host(sequence: Sequence) -> bool:
    """Whether its next token, and how it is chosen, need nothing that the host learns from the
    tokens before."""
    params = sequence.params
    return (
        params.grammar is None
        and params.thinking_limit is None
        and params.top_logprobs is None
        and not _has_wishes(sequence)
    )


def _has_wishes(sequence: Sequence) -> bool:
    """Whether its parameters favour or forbid tokens."""
    params = sequence.params
    return (
        has_penalties(params)
        or bool(params.logit_bias)
        or sequence.num_output_tokens < params.min_tokens
    )
