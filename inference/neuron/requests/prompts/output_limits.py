"""The limit of an answer's length: the client's, the operator's, or the rest of the context.

The rules are OpenAI's and vLLM's: a request that does not fit is refused with both numbers, not
truncated. In dialects whose clients must send a number, and send a large one (``ends_at_context``),
it runs, and the answer reports that it ended at the operator's limit or with the context.

A request of a caller with a budget has what the gateway reserved for it, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from inference.neuron.errors import (
    RequestRefusedError,
    context_length_exceeded,
    max_output_exceeded,
    no_budget_for_answer,
    over_budget,
    prompt_too_long,
    what_always_fits,
)
from inference.protocol.generation import (
    ChatInput,
    GenerationRequest,
    Submit,
    TextInput,
    TokensInput,
)
from inference.protocol.model_limit import model_limit


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
    cap_output_tokens: int | None = None,
) -> AnswerLimit:
    """``max_output_tokens`` is the operator's bound. ``cap_output_tokens`` is what the budget of
    who asks still buys; it counts where they named no number, and the gateway has reserved what
    they named otherwise. Raises ``RequestRefusedError``."""
    advertised = model_limit(context_tokens, max_output_tokens)
    left = context_tokens - num_prompt_tokens
    if left < 1:
        failure = prompt_too_long(num_prompt_tokens, advertised, prompt_param(request.input))
        raise RequestRefusedError(failure)
    asked = request.sampling.max_tokens
    if asked is None and cap_output_tokens is not None:
        if cap_output_tokens < 1:
            raise RequestRefusedError(no_budget_for_answer())
        max_output_tokens = min(cap_output_tokens, max_output_tokens or cap_output_tokens)
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
        f"{num_prompt_tokens + asked}: {num_prompt_tokens} in the prompt and {asked} for the "
        f"answer. {what_always_fits(advertised)}"
    )
    failure = context_length_exceeded(
        message, "max_tokens", prompt_tokens=num_prompt_tokens, context_tokens=context_tokens
    )
    raise RequestRefusedError(failure)


def prompt_param(given: ChatInput | TextInput | TokensInput) -> str:
    """What clients call it."""
    return "messages" if isinstance(given, ChatInput) else "prompt"


@dataclass(frozen=True, slots=True)
class TokenBudget:
    prompt_tokens: int | None = None
    """Over all prompts; ``None``: any number."""
    output_tokens: int | None = None
    """What each choice may write where the client named no number."""

    @classmethod
    def of(cls, submit: Submit) -> TokenBudget:
        return cls(submit.max_prompt_tokens, submit.cap_output_tokens)

    def check_prompt(self, num_tokens: int) -> None:
        """Raises ``RequestRefusedError``."""
        if self.prompt_tokens is not None and num_tokens > self.prompt_tokens:
            raise RequestRefusedError(over_budget(num_tokens, self.prompt_tokens))


UNBOUNDED = TokenBudget()
