"""How long an answer may be: what the client asked, the operator's bound, what the context leaves.

The rules of OpenAI and vLLM: what does not fit is refused with both numbers, not cut. A dialect
whose clients must name a number, and name a large one (``ends_at_context``), is told at the end
instead: the answer says that it ended at the operator's bound or with the context.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from inference.neuron.errors import (
    RequestRefusedError,
    context_length_exceeded,
    max_output_exceeded,
)
from inference.protocol.events import Failure
from inference.protocol.generation import ChatInput, GenerationRequest


@dataclass(frozen=True, slots=True)
class AnswerLimit:
    max_tokens: int
    reason: Literal["length", "context"] = "length"
    """Why an answer that long ends."""


def answer_limit(
    request: GenerationRequest,
    *,
    num_prompt_tokens: int,
    context_tokens: int,
    max_output_tokens: int | None,
) -> AnswerLimit:
    """``max_output_tokens`` is the operator's. Raises ``RequestRefusedError``."""
    left = context_tokens - num_prompt_tokens
    if left < 1:
        raise RequestRefusedError(_prompt_too_long(request, num_prompt_tokens, context_tokens))
    asked = request.sampling.max_tokens
    wanted = max_output_tokens if asked is None else asked
    if asked is not None and max_output_tokens is not None and asked > max_output_tokens:
        if not request.ends_at_context:
            raise RequestRefusedError(max_output_exceeded(asked, max_output_tokens))
        wanted = max_output_tokens
    if wanted is not None and wanted <= left:
        return AnswerLimit(wanted)
    if request.ends_at_context:
        return AnswerLimit(left, "context")
    if asked is None:
        return AnswerLimit(left)
    message = (
        f"this model's maximum context length is {context_tokens} tokens and you asked for "
        f"{num_prompt_tokens + asked}: {num_prompt_tokens} in the prompt and {asked} for the answer"
    )
    raise RequestRefusedError(context_length_exceeded(message, "max_tokens"))


def _prompt_too_long(
    request: GenerationRequest, num_prompt_tokens: int, context_tokens: int
) -> Failure:
    message = (
        f"this model's maximum context length is {context_tokens} tokens and the prompt has "
        f"{num_prompt_tokens}, which leaves no room for an answer"
    )
    param = "messages" if isinstance(request.input, ChatInput) else "prompt"
    return context_length_exceeded(message, param)
