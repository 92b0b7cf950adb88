"""Tokens of a request that is passed through, where its model has prices of tokens. Pure.

Its model's limits bound them: the prompt by the context, and the answer, or each image of it, by
the longest answer. A report within these bounds is believed.
"""

from __future__ import annotations

from fleet.catalogue import CatalogueEntry
from inference.gateway.request.token_bounds import TokenBounds
from inference.protocol.events import Usage
from inference.wire.openai.passed.request import PassedRequest
from inference.wire.upstream.answer_events import BYTES_A_TOKEN

NO_TOKENS = TokenBounds(prompt_tokens=0, output_tokens=0, default_output_tokens=0, num_choices=1)
TOKENS_A_SECOND = 10
"""Tokens of audio, as OpenAI's models count a user's: one for each 100 ms."""


def most_tokens(entry: CatalogueEntry, request: PassedRequest) -> TokenBounds:
    """The most that it may use. None where no target has prices of tokens."""
    if not any(entry.charges_tokens_at(target) for target in entry.ordered_targets):
        return NO_TOKENS
    num_answers = request.most_units if request.endpoint.task == "images" else 1
    return TokenBounds(
        prompt_tokens=entry.max_context_tokens or 0,
        output_tokens=(entry.max_output_tokens or 0) * num_answers,
        default_output_tokens=0,
        num_choices=1,
    )


def believed(reported: Usage | None, most: TokenBounds) -> Usage | None:
    """``None``: nothing is reported, or more than can be."""
    if reported is None:
        return None
    is_within = reported.completion_tokens <= (most.output_tokens or 0)
    return reported if is_within and reported.prompt_tokens <= most.prompt_tokens else None


def estimate(most: TokenBounds, request: PassedRequest, *, units: int, num_bytes: int) -> Usage:
    """``units`` and ``num_bytes``: the answer's. Nothing shows how many tokens images had: the most
    are charged."""
    prompt_tokens, output_tokens = most.prompt_tokens, most.output_tokens or 0
    if request.endpoint.task == "transcription":
        prompt_tokens = min(prompt_tokens, units * TOKENS_A_SECOND)
        output_tokens = min(output_tokens, -(-num_bytes // BYTES_A_TOKEN))
    else:
        output_tokens = output_tokens * units // max(1, request.most_units)
    return Usage(prompt_tokens=prompt_tokens, completion_tokens=output_tokens)
