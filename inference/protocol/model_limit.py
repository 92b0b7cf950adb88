"""A model's advertised limits and capabilities.

Clients fill prompts up to ``input`` and request ``output``, so the two fit into the context
together, under any limit of the operator's. A request beyond one of them that fits into the context
all the same is served. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

DEFAULT_OUTPUT_TOKENS = 8192
"""The original system's reserve for answers."""
SHARE = 4
"""The largest part of the context for answers without an operator's limit, and the smallest for
prompts with one: a quarter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimit:
    """A model's limits in tokens; ``input + output <= context``."""

    context: int
    input: int
    output: int


def model_limit(
    context_tokens: int, max_output_tokens: int | None, *, only_reads: bool = False
) -> ModelLimit:
    """``max_output_tokens`` is the operator's limit. ``only_reads``: the model writes no tokens
    (embeddings, scores)."""
    if only_reads:
        return ModelLimit(context=context_tokens, input=context_tokens, output=0)
    share = max(1, context_tokens // SHARE)
    if max_output_tokens is None:
        output = min(DEFAULT_OUTPUT_TOKENS, share)
    else:
        output = min(max_output_tokens, max(1, context_tokens - share))
    return ModelLimit(context=context_tokens, input=context_tokens - output, output=output)


def with_text(capabilities: Sequence[str]) -> tuple[str, ...]:
    """Prepends the original's ``text`` where the model answers in words."""
    answers = "chat" in capabilities or "completions" in capabilities
    return ("text", *capabilities) if answers else tuple(capabilities)
