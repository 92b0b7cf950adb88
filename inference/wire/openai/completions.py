"""OpenAI's completions dialect: prompts, as text or token ids, and their continuations.

    parse(body) ─▶ CompletionRequest(generation, …)
    event ─▶ CompletionStreamEncoder      a chunk for each piece of text
          └▶ CompletionBodyEncoder        the pieces of each choice put together

These requests have neither tools nor a chat template, so a thinking block is ordinary text. Source:
https://platform.openai.com/docs/api-reference/completions. Pure: ids and times are arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from inference.protocol.events import (
    Accepted,
    ChoiceFinished,
    Delta,
    Event,
    Finished,
    OutputTokens,
    PromptScored,
    ReasoningDelta,
    TextLogprob,
)
from inference.protocol.generation import GenerationRequest, TextInput, TokensInput
from inference.wire.common import fields as f
from inference.wire.dialect import NO_CONTEXT, Encoder, RequestContext, UnixClock
from inference.wire.errors import InvalidRequestError, UnsupportedParameterError
from inference.wire.openai import fields as openai_fields
from inference.wire.openai.answers import (
    LEAST_LOGPROB,
    Chunks,
    PromptLogprobs,
    UsageReporting,
    answer_head,
    body_parts,
    finish_reason,
    head_of,
    with_usage_and_padding,
)
from inference.wire.openai.fields import (
    MAX_CHOICES,
    MAX_TOKENS,
    end_user_of,
    prompts,
)
from inference.wire.openai.formats import OUTPUT_FIELDS, output_format

MAX_LOGPROBS = 20
"""OpenAI's own limit is 5; evaluation suites request as many as chat has."""
DEFAULT_MAX_TOKENS = 16

FIELDS = f.table(
    *openai_fields.SHARED_FIELDS,
    *OUTPUT_FIELDS,
    f.required(
        "prompt", prompts(MAX_CHOICES), "A string or an array of token ids, or several of one kind."
    ),
    f.honoured("echo", f.flag, "The prompt's text first; with logprobs, its tokens' too."),
    f.honoured("logprobs", f.integer(0, MAX_LOGPROBS), "0 to 20."),
    f.honoured(
        "max_tokens",
        f.integer(0, MAX_TOKENS),
        "0 only with echo or prompt_logprobs; 16 where it is missing.",
    ),
    f.neutral("best_of", f.integer(1, MAX_CHOICES), "1, or what n is."),
    f.fixed("suffix", "", "text is not inserted"),
    f.fixed("add_special_tokens", True, "token ids are taken as they are"),
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
    read = f.read_body(body, FIELDS)
    echo, max_tokens = read.get("echo", False), read.get("max_tokens", DEFAULT_MAX_TOKENS)
    if max_tokens == 0 and not echo and "prompt_logprobs" not in read:
        raise InvalidRequestError(
            "'max_tokens' is 0, and neither 'echo' nor 'prompt_logprobs' asks for the prompt.",
            param="max_tokens",
        )
    generation = GenerationRequest(
        model=read["model"],
        input=read["prompt"],
        sampling=openai_fields.sampling_options(
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
        usage=openai_fields.usage_reporting(read, context),
        pads_chunks=openai_fields.pads_chunks(read),
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


@dataclass(slots=True)
class Logprobs:
    """The dialect's four parallel lists. ``text_offset`` counts characters of the text, token by
    token, from ``num_chars`` on. The first token of an echoed prompt has no probability."""

    num_chars: int = 0
    tokens: list[str] = field(default_factory=list)
    token_logprobs: list[float | None] = field(default_factory=list)
    top_logprobs: list[orjson.Fragment | None] = field(default_factory=list)
    text_offset: list[int] = field(default_factory=list)

    def extend(self, tokens: list[TextLogprob]) -> None:
        for token in tokens:
            self.tokens.append(token.token)
            if token.logprob is None:
                self.token_logprobs.append(None)
                self.top_logprobs.append(None)
            else:
                self.token_logprobs.append(max(token.logprob, LEAST_LOGPROB))
                likely = orjson.dumps(most_likely(token, token.logprob))
                self.top_logprobs.append(orjson.Fragment(likely))
            self.text_offset.append(self.num_chars)
            self.num_chars += len(token.token)

    def as_object(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        }


def most_likely(token: TextLogprob, logprob: float) -> dict[str, float]:
    """The token's own and the candidates', the best of equal spellings."""
    top = {token.token: logprob}
    top |= {candidate: value for candidate, _, value in reversed(token.top)}
    return {candidate: max(value, LEAST_LOGPROB) for candidate, value in top.items()}


def text_of(event: Delta | ReasoningDelta) -> str:
    if isinstance(event, Delta):
        return event.text
    return (event.opens or "") + event.text + (event.closes or "")


class CompletionStreamEncoder:
    def __init__(self, chunks: Chunks, num_choices: int) -> None:
        self._chunks = chunks
        self._text: list[bytes] = []
        self._text_end = b',"logprobs":null,"finish_reason":null}' + chunks.end
        self._num_chars = [0] * num_choices

    def encode(self, event: Event) -> bytes:
        match event:
            case Accepted():
                self._chunks.begin(event)
                start = self._chunks.start
                indices = range(len(self._num_chars))
                self._text = [start + b'{"index":%d,"text":' % index for index in indices]
                return self._prompts(event)
            case OutputTokens():
                return self._chunks.choice(event.index, {"text": "", "token_ids": event.token_ids})
            case Delta(logprobs=None) | ReasoningDelta():
                piece = text_of(event)
                if not piece:
                    return b""
                return self._text[event.index] + orjson.dumps(piece) + self._text_end
            case Delta():
                logprobs = Logprobs(num_chars=self._num_chars[event.index])
                logprobs.extend(event.logprobs or [])
                self._num_chars[event.index] = logprobs.num_chars
                text = {"text": event.text}
                return self._chunks.choice(event.index, text, logprobs=logprobs.as_object())
            case ChoiceFinished():
                reason = finish_reason(event.reason)
                return self._chunks.choice(event.index, {"text": ""}, finish_reason=reason)
            case Finished():
                return self._chunks.last(event)
        return b""

    def _prompts(self, event: Accepted) -> bytes:
        prompts = prompts_of_choices(event, len(self._num_chars))
        return b"".join(
            self._chunks.choice(index, {"text": "", "prompt_token_ids": prompt})
            for index, prompt in enumerate(prompts)
        )


@dataclass(slots=True)
class Choice:
    logprobs: Logprobs | None
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str = ""


class CompletionBodyEncoder:
    def __init__(
        self,
        head: dict[str, Any],
        num_choices: int,
        usage: UsageReporting,
        *,
        shows_logprobs: bool,
        prompt_logprobs: PromptLogprobs | None = None,
        n: int = 1,
    ) -> None:
        """``prompt_logprobs`` collects them; ``n`` choices have one prompt."""
        self._prompt_logprobs = prompt_logprobs
        self._n = n
        self._head = head
        self._usage = usage
        self._prompts: list[list[int]] = []
        self._choices = [Choice(Logprobs() if shows_logprobs else None) for _ in range(num_choices)]

    def encode(self, event: Event) -> bytes:
        return b"".join(self.parts(event))

    def parts(self, event: Event) -> Iterator[bytes]:
        match event:
            case Accepted():
                self._head = head_of(self._head, event)
                self._prompts = prompts_of_choices(event, len(self._choices))
            case PromptScored() if self._prompt_logprobs is not None:
                self._prompt_logprobs.add(event)
            case OutputTokens():
                self._choices[event.index].token_ids += event.token_ids
            case Delta() | ReasoningDelta():
                choice = self._choices[event.index]
                choice.texts.append(text_of(event))
                if choice.logprobs is not None and isinstance(event, Delta):
                    choice.logprobs.extend(event.logprobs or [])
            case ChoiceFinished():
                self._choices[event.index].finish_reason = finish_reason(event.reason)
            case Finished():
                yield from self._body(event)

    def _body(self, event: Finished) -> Iterator[bytes]:
        choices = (
            {
                "index": index,
                "text": "".join(choice.texts),
                "logprobs": None if choice.logprobs is None else choice.logprobs.as_object(),
                "finish_reason": choice.finish_reason,
                **self._ids(index),
                **self._scores(index),
            }
            for index, choice in enumerate(self._choices)
        )
        return body_parts(self._head, choices, event, self._usage)

    def _ids(self, index: int) -> dict[str, Any]:
        if not self._prompts:
            return {}
        token_ids = self._choices[index].token_ids
        return {"prompt_token_ids": self._prompts[index], "token_ids": token_ids}

    def _scores(self, index: int) -> dict[str, Any]:
        if self._prompt_logprobs is None:
            return {}
        return {"prompt_logprobs": self._prompt_logprobs.of_prompt(index // self._n)}


def prompts_of_choices(event: Accepted, num_choices: int) -> list[list[int]]:
    """The token ids of each choice's prompt; empty unless requested."""
    prompts = event.prompt_token_ids
    if not prompts:
        return []
    return [prompts[index * len(prompts) // num_choices] for index in range(num_choices)]
