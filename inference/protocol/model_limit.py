"""What a model advertises: its capabilities, and how long a prompt and its answer may be together.

Clients size themselves by the limit: they fill prompts up to ``input`` and ask for ``output``. So
the two fit into the context together, whatever the operator bounds. A request beyond one of them
that fits into the context all the same is served. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

DEFAULT_OUTPUT_TOKENS = 8192
"""The original system's reserve for answers."""
SHARE = 4
"""The part of the context that answers get at most without an operator's bound, and prompts at
least with one: a quarter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimit:
    """A model's limits in tokens; ``input + output <= context``."""

    context: int
    input: int
    output: int


def model_limit(
    context_tokens: int, max_output_tokens: int | None, *, only_reads: bool = False
) -> ModelLimit:
    """``max_output_tokens`` is the operator's bound. ``only_reads``: the model writes no tokens
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
    """Puts the original's ``text`` before them where the model answers in words."""
    answers = "chat" in capabilities or "completions" in capabilities
    return ("text", *capabilities) if answers else tuple(capabilities)
