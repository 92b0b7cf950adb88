"""Why a prompt can never run here, whatever else does. Pure."""

from __future__ import annotations


def prompt_problem(
    token_ids: list[int], *, vocab_size: int, context_tokens: int
) -> tuple[str, str] | None:
    """Code and message for the client."""
    if not token_ids:
        return "bad_token_id", "the prompt has no tokens"
    # Two passes in C: a long prompt must not hold up the step.
    for token_id in (min(token_ids), max(token_ids)):
        if not 0 <= token_id < vocab_size:
            return "bad_token_id", f"token id {token_id} is outside the vocabulary of {vocab_size}"
    if len(token_ids) + 1 > context_tokens:
        return "context_length_exceeded", (
            f"the prompt has {len(token_ids)} tokens and at least one is to be generated, "
            f"but the context holds {context_tokens} tokens"
        )
    return None
