"""OpenAI's completions: https://platform.openai.com/docs/api-reference/completions.

Without a chat template a thinking block is ordinary text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from inference.protocol.events import Accepted, Delta, Event, ReasoningDelta, TextLogprob
from inference.protocol.generation import TextInput
from inference.wire import fields as f
from inference.wire.dialect import NO_CONTEXT, Encoder, RequestContext, UnixClock
from inference.wire.errors import InvalidRequestError, UnsupportedParameterError
from inference.wire.openai import fields as openai_fields
from inference.wire.openai.answers import (
    LEAST_LOGPROB,
    AskedAnswer,
    BodyEncoder,
    Choice,
    StreamEncoder,
)
from inference.wire.openai.fields import MAX_CHOICES, MAX_TOKENS, prompts
from inference.wire.openai.formats import OUTPUT_FIELDS, output_format

KIND = "text_completion"
MAX_LOGPROBS = 20
"""OpenAI's own limit is 5; evaluation suites request as many as chat has."""
DEFAULT_MAX_TOKENS = 16

FIELDS = f.table(
    *openai_fields.SHARED_FIELDS.values(),
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
class CompletionRequest(AskedAnswer):
    @property
    def num_choices(self) -> int:
        return num_prompts(self.generation.input) * self.generation.n

    def stream_encoder(self, *, request_id: str, clock: UnixClock) -> Encoder:
        head = self.head("cmpl", KIND, request_id, clock)
        return self.reporting(CompletionStreamEncoder(head, self.usage, self.num_choices))

    def body_encoder(self, *, request_id: str, clock: UnixClock) -> BodyEncoder:
        shows_logprobs = self.generation.sampling.top_logprobs is not None
        choices = [
            CompletionChoice(Logprobs() if shows_logprobs else None)
            for _ in range(self.num_choices)
        ]
        head = self.head("cmpl", KIND, request_id, clock)
        return BodyEncoder(self, head, choices, names_prompts=True)


def parse(body: bytes, context: RequestContext = NO_CONTEXT) -> CompletionRequest:
    read = f.read_body(body, FIELDS)
    echo, max_tokens = read.get("echo", False), read.get("max_tokens", DEFAULT_MAX_TOKENS)
    if max_tokens == 0 and not echo and "prompt_logprobs" not in read:
        raise InvalidRequestError(
            "'max_tokens' is 0, and neither 'echo' nor 'prompt_logprobs' asks for the prompt.",
            param="max_tokens",
        )
    _check_num_choices(read, num_prompts(read["prompt"]))
    asked = openai_fields.asked_answer(
        read,
        context,
        input=read["prompt"],
        max_tokens=max_tokens,
        top_logprobs=read.get("logprobs"),
        output_format=output_format(read),
        echo=echo,
    )
    return CompletionRequest(**asked)


def num_prompts(given: Any) -> int:
    return len(given.texts if isinstance(given, TextInput) else given.prompts)


def _check_num_choices(read: dict[str, Any], num_prompts: int) -> None:
    n: int = read.get("n", 1)
    if read.get("best_of", 1) not in (1, n):
        raise UnsupportedParameterError(
            "best_of", "every answer is returned, so only 1 or the value of 'n' is accepted"
        )
    if num_prompts * n > MAX_CHOICES:
        raise InvalidRequestError(
            f"{num_prompts} prompts with {n} answers each are {num_prompts * n} choices; a "
            f"request may have {MAX_CHOICES}.",
            param="n" if n > 1 else "prompt",
        )


@dataclass(slots=True)
class Logprobs:
    """``text_offset`` counts characters. An echoed prompt's first token has no probability."""

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
    top = {token.token: logprob}
    top |= {candidate: value for candidate, _, value in reversed(token.top)}
    return {candidate: max(value, LEAST_LOGPROB) for candidate, value in top.items()}


def text_of(event: Delta | ReasoningDelta) -> str:
    if isinstance(event, Delta):
        return event.text
    return (event.opens or "") + event.text + (event.closes or "")


class CompletionStreamEncoder(StreamEncoder):
    text, text_end = b'"text":', b""
    empty: dict[str, Any] = {"text": ""}

    def _begin(self, event: Accepted) -> bytes:
        prompts, count = event.prompt_token_ids or [], len(self._indices)
        self._num_chars = [0] * count
        return b"".join(
            self._chunk(
                index, {"text": "", "prompt_token_ids": prompts[index * len(prompts) // count]}
            )
            for index in self._indices
            if prompts
        )

    def _other(self, event: Event) -> bytes:
        match event:
            case ReasoningDelta():
                text = Delta(request_id="", text=text_of(event), index=event.index)
                return self.encode(text)
            case Delta():
                logprobs = Logprobs(num_chars=self._num_chars[event.index])
                logprobs.extend(event.logprobs or [])
                self._num_chars[event.index] = logprobs.num_chars
                piece = {"text": event.text}
                return self._chunk(event.index, piece, logprobs=logprobs.as_object())
        return b""


class CompletionChoice(Choice):
    def __init__(self, logprobs: Logprobs | None) -> None:
        super().__init__()
        self._logprobs = logprobs
        self._texts: list[str] = []

    def add(self, event: Event) -> None:
        if not isinstance(event, Delta | ReasoningDelta):
            return
        self._texts.append(text_of(event))
        if self._logprobs is not None and isinstance(event, Delta):
            self._logprobs.extend(event.logprobs or [])

    def content(self) -> dict[str, Any]:
        return {"text": "".join(self._texts)}

    def logprobs(self) -> dict[str, Any] | None:
        return None if self._logprobs is None else self._logprobs.as_object()
