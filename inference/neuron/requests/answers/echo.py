"""Reports a prompt: ``Echo`` puts its text before the answer, with its tokens' logprobs where the
client asked for logprobs; ``PromptScores`` reports their log probabilities by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from inference.neuron.requests.prompts.model_text import ModelText
from inference.neuron.requests.prompts.prompts import Prepared
from inference.protocol.events import PromptScored, RankedToken, TextLogprob
from inference.protocol.generation import GenerationRequest, TextInput
from inference.protocol.sampling import TokenLogprob
from inference.text.tokens.tokenizer import Detokenizer, Tokenizer


@dataclass(slots=True)
class Echo:
    text: str
    logprobs: list[TextLogprob] = field(default_factory=list)
    """The log probabilities of the prompt's tokens; all but the first's come from the engine."""
    num_top: int | None = None
    """How many of the most likely stand beside each; ``None``: no logprobs are reported."""

    def keep(self, prompt_logprobs: Sequence[TokenLogprob], tokenizer: Tokenizer) -> None:
        """Keeps what comes before the answer begins."""
        if self.num_top is None:
            return
        for entry in prompt_logprobs:
            shown = msgspec.structs.replace(entry, top=entry.top[: self.num_top])
            self.logprobs.append(text_logprob(shown, tokenizer))


def echo_of(index: int, request: GenerationRequest, prepared: Prepared, text: ModelText) -> Echo:
    """Returns the echo that comes before an answer to prompt ``index``."""
    echo = Echo(_text(index, request, prepared, text), num_top=request.sampling.top_logprobs)
    if echo.num_top is not None:
        first_token_id = prepared.prompts[index][0]
        echo.logprobs.append(text_logprob(TokenLogprob(first_token_id, None), text.tokenizer))
    return echo


def _text(index: int, request: GenerationRequest, prepared: Prepared, text: ModelText) -> str:
    """The client's own text, or its tokens as text."""
    if isinstance(request.input, TextInput):
        return request.input.texts[index]
    detokenizer = Detokenizer(text.tokenizer)
    return detokenizer.feed(prepared.prompts[index]) + detokenizer.flush()


def text_logprob(entry: TokenLogprob, tokenizer: Tokenizer) -> TextLogprob:
    def text_of(token_id: int) -> str:
        return tokenizer.bytes_of(token_id).decode("utf-8", errors="replace")

    return TextLogprob(
        token=text_of(entry.token_id),
        token_bytes=tokenizer.bytes_of(entry.token_id),
        logprob=entry.logprob,
        top=[
            (text_of(token_id), tokenizer.bytes_of(token_id), logprob)
            for token_id, logprob in entry.top
        ],
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
