"""OpenAI's completions dialect: prompts, as text or token ids, and the texts that follow them.

    parse(body) ─▶ CompletionRequest(generation, …) ─▶ the encoders of openai_completion_answers

Source: https://platform.openai.com/docs/api-reference/completions. Pure: ids and times are
arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inference.protocol.generation import GenerationRequest, TextInput, TokensInput
from inference.wire.common.fields import (
    flag,
    honoured,
    integer,
    neutral,
    only,
    read_fields,
    read_json_object,
    table,
)
from inference.wire.dialect import NO_CONTEXT, Encoder, RequestContext, UnixClock
from inference.wire.errors import InvalidRequestError, UnsupportedParameterError
from inference.wire.openai import sampling as openai_sampling
from inference.wire.openai.answers import (
    Chunks,
    UsageReporting,
    answer_head,
    with_usage_and_padding,
)
from inference.wire.openai.completions.answers import (
    CompletionBodyEncoder,
    CompletionStreamEncoder,
)
from inference.wire.openai.extensions import NEUTRAL_FIELDS
from inference.wire.openai.formats import OUTPUT_FIELDS, output_format
from inference.wire.openai.prompt_logprobs import PromptLogprobs
from inference.wire.openai.prompts import prompts
from inference.wire.openai.sampling import MAX_CHOICES, MAX_TOKENS, end_user_of

MAX_LOGPROBS = 20
"""OpenAI's own limit is 5; evaluation suites ask for as many as chat has."""
DEFAULT_MAX_TOKENS = 16
"""The dialect's own default, unlike chat's."""

FIELDS = table(
    *openai_sampling.SHARED_FIELDS,
    *NEUTRAL_FIELDS,
    *OUTPUT_FIELDS,
    honoured(
        "prompt", prompts(MAX_CHOICES), "A string or an array of token ids, or several of one kind."
    ),
    honoured("echo", flag, "The prompt's text first; with logprobs, its tokens' too."),
    honoured("logprobs", integer(0, MAX_LOGPROBS), "0 to 20."),
    honoured(
        "max_tokens",
        integer(0, MAX_TOKENS),
        "0 only with echo or prompt_logprobs; 16 where it is missing.",
    ),
    neutral("best_of", integer(1, MAX_CHOICES), "1, or what n is."),
    neutral("suffix", only("", reason="text is not inserted"), '""'),
    neutral("add_special_tokens", only(True, reason="token ids are taken as they are"), "true"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    generation: GenerationRequest
    num_choices: int
    stream: bool
    usage: UsageReporting
    pads_chunks: bool

    def stream_encoder(self, *, request_id: str, clock: UnixClock) -> Encoder:
        chunks = Chunks(self._head(request_id, clock()), self.usage)
        encoder = CompletionStreamEncoder(chunks, self.num_choices)
        return with_usage_and_padding(encoder, self.usage, pads=self.pads_chunks)

    def body_encoder(self, *, request_id: str, clock: UnixClock) -> CompletionBodyEncoder:
        return CompletionBodyEncoder(
            self._head(request_id, clock()),
            self.num_choices,
            self.usage,
            shows_logprobs=self.generation.sampling.top_logprobs is not None,
            prompt_logprobs=self._prompt_logprobs(),
            n=self.generation.n,
        )

    def _prompt_logprobs(self) -> PromptLogprobs | None:
        if self.generation.sampling.prompt_logprobs is None:
            return None
        return PromptLogprobs(self.num_choices // self.generation.n)

    def _head(self, request_id: str, created_unix_s: int) -> dict[str, Any]:
        model = self.generation.model
        return answer_head(f"cmpl-{request_id}", "text_completion", created_unix_s, model)


def parse(body: bytes, context: RequestContext = NO_CONTEXT) -> CompletionRequest:
    """Raises ``ApiError`` (400) for everything that is not a request this server honours whole."""
    read = read_fields(read_json_object(body), FIELDS, required=("model", "prompt"))
    echo, max_tokens = read.get("echo", False), read.get("max_tokens", DEFAULT_MAX_TOKENS)
    if max_tokens == 0 and not echo and "prompt_logprobs" not in read:
        raise InvalidRequestError(
            "'max_tokens' is 0, and neither 'echo' nor 'prompt_logprobs' asks for the prompt.",
            param="max_tokens",
        )
    generation = GenerationRequest(
        model=read["model"],
        input=read["prompt"],
        sampling=openai_sampling.sampling_options(
            read,
            max_tokens=max_tokens,
            top_logprobs=read.get("logprobs"),
        ),
        stop=read.get("stop", []),
        returns_token_ids=read.get("return_token_ids", False),
        n=_n(read),
        output_format=output_format(read),
        echo=echo,
        end_user=end_user_of(read),
    )
    return CompletionRequest(
        generation=generation,
        num_choices=_num_choices(read["prompt"], generation.n),
        stream=read.get("stream", False),
        usage=openai_sampling.usage_reporting(read, context),
        pads_chunks=openai_sampling.pads_chunks(read),
    )


def _n(read: dict[str, Any]) -> int:
    n: int = read.get("n", 1)
    if read.get("best_of", 1) not in (1, n):
        raise UnsupportedParameterError(
            "best_of", "every answer is returned, so only 1 or the value of 'n' is accepted"
        )
    return n


def _num_choices(given: TextInput | TokensInput, n: int) -> int:
    num_prompts = len(given.texts if isinstance(given, TextInput) else given.prompts)
    if num_prompts * n > MAX_CHOICES:
        raise InvalidRequestError(
            f"{num_prompts} prompts with {n} answers each are {num_prompts * n} choices; a "
            f"request may have {MAX_CHOICES}.",
            param="n" if n > 1 else "prompt",
        )
    return num_prompts * n
