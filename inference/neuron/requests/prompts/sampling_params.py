"""How a request is sampled: by the client's choice, else the model's own defaults. Pure.

Of a chat also what its answer may think: the markers to look for, whether its prompt has opened the
block, and how long it may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from inference.neuron.errors import RequestRefusedError, bad_token_id
from inference.neuron.requests.prompts.model_text import ModelText
from inference.protocol.events import Failure, UsedSampling
from inference.protocol.generation import ChatInput
from inference.protocol.load import LoadReport
from inference.protocol.sampling import (
    DEFAULTS_OF_MODELS,
    Grammar,
    SamplingOptions,
    SamplingParams,
    ThinkingLimit,
)
from inference.text.answers.phrases import PhraseMarkers, opens_phrase
from inference.text.answers.reasoning import ReasoningMarkers, opens_block
from inference.text.templates.chat_options import wants_thinking


def resolve_sampling(
    options: SamplingOptions, max_tokens: int, report: LoadReport
) -> SamplingParams:
    """The client's choice, else the model's generation_config, else the neutral value."""
    chosen: dict[str, Any] = {}
    for name in DEFAULTS_OF_MODELS:
        value = getattr(options, name)
        if value is None:
            value = report.generation_defaults.get(name)
        if value is not None:
            chosen[name] = value
    stop_ids = [] if options.ignore_eos else report.eos_token_ids
    _check_ids_in_vocabulary(options, report.vocab_size)
    return SamplingParams(
        **chosen,
        max_tokens=max_tokens,
        logit_bias=options.logit_bias or {},
        seed=options.seed,
        top_logprobs=options.top_logprobs,
        prompt_logprobs=options.prompt_logprobs,
        stop_token_ids=list(dict.fromkeys([*stop_ids, *options.stop_token_ids])),
        min_tokens=options.min_tokens,
    )


def used_sampling(params: SamplingParams) -> UsedSampling:
    return UsedSampling(
        temperature=params.temperature,
        top_p=params.top_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
    )


def _check_ids_in_vocabulary(options: SamplingOptions, vocab_size: int) -> None:
    for param, token_ids in (
        ("logit_bias", options.logit_bias or ()),
        ("stop_token_ids", options.stop_token_ids),
    ):
        for token_id in token_ids:
            if not 0 <= token_id < vocab_size:
                failure = bad_token_id(token_id, vocab_size)
                raise RequestRefusedError(msgspec.structs.replace(failure, param=param))


NUM_LAST_TOKENS = 32
"""How much of a prompt's end is looked at: a phrase and the white space behind it have no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """Between ``markers`` or ``phrases``; without both nothing is looked for."""

    markers: ReasoningMarkers | None = None
    phrases: PhraseMarkers | None = None
    is_open: bool = False
    """The prompt has opened the block."""

    @classmethod
    def of(cls, chat: ChatInput, prompt: Sequence[int], text: ModelText) -> Thinking:
        """Raises ``RequestRefusedError`` for a limit that nothing could hold."""
        if text.phrases is None:
            is_open = opens_block(prompt, text.markers, text.tokenizer)
            return cls(markers=text.markers, is_open=is_open)
        if chat.answer_start or (text.phrases.is_asked_for and wants_thinking(chat) is False):
            return cls()
        if chat.thinking_budget_tokens is not None:
            raise _unsupported("no single token ends this model's thinking, so it has no limit")
        last = b"".join(map(text.tokenizer.bytes_of, prompt[-NUM_LAST_TOKENS:]))
        is_open = opens_phrase(last.decode(errors="replace"), text.phrases)
        return cls(phrases=text.phrases, is_open=is_open)

    def check(self, grammar: Grammar | None) -> None:
        """Raises ``RequestRefusedError`` where the grammar would be the thought's."""
        if grammar is not None and self.phrases is not None and self.is_open:
            raise _unsupported(
                "no single token ends the thinking that this model's template begins, so what "
                "follows it cannot be held to a grammar"
            )

    def limit(self, chat: ChatInput) -> ThinkingLimit | None:
        """A model without markers does not think, and needs none."""
        markers = self.markers
        if chat.thinking_budget_tokens is None or markers is None:
            return None
        return ThinkingLimit(
            max_tokens=chat.thinking_budget_tokens,
            end_token_id=markers.end_token_id,
            start_token_id=None if self.is_open else markers.start_token_id,
            follows_token_id=None if self.is_open else markers.follows_token_id,
        )


def _unsupported(message: str) -> RequestRefusedError:
    return RequestRefusedError(Failure(code="unsupported_parameter", message=message))
