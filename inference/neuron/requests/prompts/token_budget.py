"""What the budget of who asks allows a request, as the gateway has reserved it."""

from __future__ import annotations

from dataclasses import dataclass

from inference.neuron.errors import RequestRefusedError, over_budget
from inference.protocol.generation import Submit


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
