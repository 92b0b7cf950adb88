"""OpenAI's completions dialect: one prompt, as text or token ids, and the text that follows it.

    parse(body) ─▶ CompletionRequest(generation, stream, include_usage)
    CompletionStreamEncoder.encode(event) ─▶ SSE frames     deltas, finish, usage, [DONE]
    CompletionBodyEncoder.encode(event) ─▶ b"" … one body   a fold over the same events

Source: https://platform.openai.com/docs/api-reference/completions. Pure: ids and times are
arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from inference.protocol.events import ChoiceFinished, Delta, Event, Finished, TextLogprob, Usage
from inference.protocol.generation import GenerationRequest, TextInput, TokensInput
from inference.wire import openai_sampling
from inference.wire.dialect import NO_CONTEXT, RequestContext
from inference.wire.errors import UnsupportedParameterError
from inference.wire.fields import (
    array,
    flag,
    honoured,
    integer,
    neutral,
    only,
    read_fields,
    read_json_object,
    refused,
    table,
    text,
    wrong_type,
)
from inference.wire.openai_chat import DONE_FRAME, LEAST_LOGPROB, usage_object

MAX_LOGPROBS = 5
DEFAULT_MAX_TOKENS = 16
"""The dialect's own default, unlike chat's."""

_token_ids = array(openai_sampling.token_id, min_items=1)
_text = text(min_chars=1)


def prompt(value: Any, path: str) -> TextInput | TokensInput:
    """A string, token ids, or a list that holds exactly one of those."""
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if len(value) > 1:
            raise UnsupportedParameterError(path, "one prompt a request, not a list of several")
        return _one_prompt(value[0], f"{path}[0]")
    return _one_prompt(value, path)


def _one_prompt(value: Any, path: str) -> TextInput | TokensInput:
    if isinstance(value, list):
        return TokensInput(prompts=[_token_ids(value, path)])
    if not isinstance(value, str):
        raise wrong_type(path, "a string or an array of token ids", value)
    return TextInput(texts=[_text(value, path)])


FIELDS = table(
    *openai_sampling.SHARED_FIELDS,
    honoured("prompt", prompt, "A string or an array of token ids; one prompt."),
    honoured("echo", flag, "The prompt's text first; not together with logprobs."),
    honoured("logprobs", integer(0, MAX_LOGPROBS), "0 to 5."),
    neutral("best_of", only(1, reason="only 1 candidate is generated"), "1"),
    refused("suffix", "text is not inserted"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    generation: GenerationRequest
    stream: bool
    include_usage: bool

    def stream_encoder(self, *, request_id: str, created_unix_s: int) -> CompletionStreamEncoder:
        return CompletionStreamEncoder(self, request_id, created_unix_s)

    def body_encoder(self, *, request_id: str, created_unix_s: int) -> CompletionBodyEncoder:
        return CompletionBodyEncoder(self, request_id, created_unix_s)


def parse(body: bytes, context: RequestContext = NO_CONTEXT) -> CompletionRequest:
    """Raises ``ApiError`` (400) for everything that is not a request this server honours whole."""
    read = read_fields(read_json_object(body), FIELDS, required=("model", "prompt"))
    echo = read.get("echo", False)
    top_logprobs = read.get("logprobs")
    if echo and top_logprobs is not None:
        raise UnsupportedParameterError("logprobs", "not together with echo")
    generation = GenerationRequest(
        model=read["model"],
        input=read["prompt"],
        sampling=openai_sampling.sampling_options(
            read,
            max_tokens=read.get("max_tokens", DEFAULT_MAX_TOKENS),
            top_logprobs=top_logprobs,
        ),
        stop=read.get("stop", []),
        echo=echo,
    )
    return CompletionRequest(
        generation=generation,
        stream=read.get("stream", False),
        include_usage=openai_sampling.includes_usage(read, context),
    )


class CompletionStreamEncoder:
    """One request's events as server-sent events, at most one chunk for each delta."""

    def __init__(self, request: CompletionRequest, request_id: str, created_unix_s: int) -> None:
        self._include_usage = request.include_usage
        self._start = b"data: " + _head(request, request_id, created_unix_s) + b',"choices":['
        self._end = b'],"usage":null}\n\n' if request.include_usage else b"]}\n\n"
        self._text = self._start + b'{"index":0,"text":'
        self._text_end = b',"logprobs":null,"finish_reason":null}' + self._end
        self._num_chars = 0

    def encode(self, event: Event) -> bytes:
        match event:
            case Delta(logprobs=None):
                if not event.text:
                    return b""
                return self._text + orjson.dumps(event.text) + self._text_end
            case Delta():
                logprobs = LegacyLogprobs(num_chars=self._num_chars)
                logprobs.extend(event.logprobs or [])
                self._num_chars = logprobs.num_chars
                return self._choice(event.text, logprobs=logprobs.as_object())
            case ChoiceFinished():
                return self._choice("", finish_reason=event.reason)
            case Finished():
                return self._last(event.usage)
        return b""

    def _choice(
        self,
        text: str,
        *,
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> bytes:
        choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
        return self._start + orjson.dumps(choice) + self._end

    def _last(self, usage: Usage) -> bytes:
        if not self._include_usage:
            return DONE_FRAME
        return (
            self._start + b'],"usage":' + orjson.dumps(usage_object(usage)) + b"}\n\n" + DONE_FRAME
        )


class CompletionBodyEncoder:
    """The same events folded into one body, which the last one completes."""

    def __init__(self, request: CompletionRequest, request_id: str, created_unix_s: int) -> None:
        self._head = _head(request, request_id, created_unix_s)
        self._texts: list[str] = []
        self._finish_reason = ""
        self._logprobs = (
            None if request.generation.sampling.top_logprobs is None else LegacyLogprobs()
        )

    def encode(self, event: Event) -> bytes:
        match event:
            case Delta():
                self._texts.append(event.text)
                if self._logprobs is not None:
                    self._logprobs.extend(event.logprobs or [])
            case ChoiceFinished():
                self._finish_reason = event.reason
            case Finished():
                return self._body(event)
        return b""

    def _body(self, finished: Finished) -> bytes:
        choice = {
            "index": 0,
            "text": "".join(self._texts),
            "logprobs": None if self._logprobs is None else self._logprobs.as_object(),
            "finish_reason": self._finish_reason,
        }
        tail = {"choices": [choice], "usage": usage_object(finished.usage)}
        return self._head + b"," + orjson.dumps(tail)[1:]


@dataclass(slots=True)
class LegacyLogprobs:
    """The dialect's four parallel lists. ``text_offset`` counts characters of the output, token
    by token, from ``num_chars`` on."""

    num_chars: int = 0
    tokens: list[str] = field(default_factory=list)
    token_logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[dict[str, float]] = field(default_factory=list)
    text_offset: list[int] = field(default_factory=list)

    def extend(self, tokens: list[TextLogprob]) -> None:
        for token in tokens:
            self.tokens.append(token.token)
            self.token_logprobs.append(max(token.logprob, LEAST_LOGPROB))
            top = {token.token: token.logprob}
            top |= {candidate: logprob for candidate, _, logprob in reversed(token.top)}
            self.top_logprobs.append(
                {candidate: max(logprob, LEAST_LOGPROB) for candidate, logprob in top.items()}
            )
            self.text_offset.append(self.num_chars)
            self.num_chars += len(token.token)

    def as_object(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        }


def _head(request: CompletionRequest, request_id: str, created_unix_s: int) -> bytes:
    """The start of every object of this answer, without its closing brace."""
    head = {
        "id": f"cmpl-{request_id}",
        "object": "text_completion",
        "created": created_unix_s,
        "model": request.generation.model,
    }
    return orjson.dumps(head)[:-1]
