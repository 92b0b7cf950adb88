"""The log probabilities of a prompt's own tokens, on their way to the client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inference.neuron.errors import RequestRefusedError
from inference.protocol.events import Failure, PromptScored, RankedToken
from inference.protocol.generation import GenerationRequest
from inference.protocol.sampling import TokenLogprob
from inference.text.tokens.tokenizer import Tokenizer

MAX_SCORES = 2**18
"""The most of one request: they become one body, which has some 70 bytes for each."""


def num_scored(request: GenerationRequest) -> int | None:
    """How many of the most likely tokens to report for each prompt token: the maximum of its echo's
    and ``prompt_logprobs``."""
    asked = [request.sampling.prompt_logprobs]
    if request.echo:
        asked.append(request.sampling.top_logprobs)
    return max((one for one in asked if one is not None), default=None)


def check_scores(request: GenerationRequest, num_prompt_tokens: int) -> None:
    """Raises ``RequestRefusedError`` for more of them than one answer holds."""
    num_top = request.sampling.prompt_logprobs
    if num_top is None or (num_scores := num_prompt_tokens * (num_top + 1)) <= MAX_SCORES:
        return
    message = (
        f"{num_prompt_tokens} prompt tokens with {num_top + 1} log probabilities each are "
        f"{num_scores}; a request may ask for {MAX_SCORES}"
    )
    raise RequestRefusedError(
        Failure(code="invalid_value", message=message, param="prompt_logprobs")
    )


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Reports the log probabilities of one prompt's tokens, as the engine computes them."""

    request_id: str
    prompt_index: int
    num_top: int

    def event(self, logprobs: Sequence[TokenLogprob], tokenizer: Tokenizer) -> PromptScored:
        return PromptScored(
            request_id=self.request_id,
            prompt_index=self.prompt_index,
            tokens=[self._ranked(entry, tokenizer) for entry in logprobs],
        )

    def _ranked(self, entry: TokenLogprob, tokenizer: Tokenizer) -> list[RankedToken]:
        assert entry.logprob is not None and entry.rank is not None, "not the engine's own"
        found = [(entry.token_id, entry.logprob, entry.rank)]
        best = enumerate(entry.top[: self.num_top], start=1)
        found += [(token_id, logprob, rank) for rank, (token_id, logprob) in best]
        return [
            RankedToken(
                token_id=token_id,
                text=tokenizer.bytes_of(token_id).decode("utf-8", errors="replace"),
                logprob=logprob,
                rank=rank,
            )
            for token_id, logprob, rank in found
        ]
