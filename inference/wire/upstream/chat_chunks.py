"""The chunks of OpenAI's chat and text completions, as an upstream sends them. Pure.

Of a chunk only what becomes an event of ours is read; a field of another type makes it none.
"""

from __future__ import annotations

from typing import Any

import msgspec

from inference.protocol.events import TextLogprob, Usage
from inference.wire.upstream.answer_events import UpstreamFaultError, tokens_of

MAX_LOGPROB = 0.01
"""The logprob of a certain token, as floats round it."""


class Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: Function | None = None


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None = None


class Logprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list[TopLogprob] | None = None


class Logprobs(msgspec.Struct):
    content: list[Logprob] | None = None


class Message(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[Call] | None = None


class Choice(msgspec.Struct):
    index: int = 0
    delta: Message | None = None
    message: Message | None = None
    text: str | None = None
    finish_reason: str | None = None
    logprobs: Any = None


class Chunk(msgspec.Struct):
    choices: list[Choice] | None = None
    usage: Any = None
    error: Any = None


_decode = msgspec.json.Decoder(Chunk).decode


def chunk_of(data: bytes) -> Chunk:
    """Raises ``UpstreamFaultError``."""
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UpstreamFaultError("what is no chunk of an answer") from error


def logprobs_of(value: Any) -> list[TextLogprob] | None:
    """Reads a choice's ``logprobs``. Raises ``UpstreamFaultError``."""
    try:
        logprobs = msgspec.convert(value, Logprobs)
    except msgspec.ValidationError as error:
        raise UpstreamFaultError("log probabilities of another form") from error
    return [_text_logprob(one) for one in logprobs.content or ()] or None


def _text_logprob(one: Logprob) -> TextLogprob:
    top = [
        (each.token, _token_bytes(each), _checked(each.logprob)) for each in one.top_logprobs or ()
    ]
    return TextLogprob(
        token=one.token, token_bytes=_token_bytes(one), logprob=_checked(one.logprob), top=top
    )


def _token_bytes(one: Logprob | TopLogprob) -> bytes:
    if one.bytes is None:
        return one.token.encode("utf-8", "replace")
    try:
        return bytes(one.bytes)
    except ValueError as error:
        raise UpstreamFaultError("log probabilities of another form") from error


def _checked(logprob: float) -> float:
    if not logprob <= MAX_LOGPROB:  # NaN is not below it
        raise UpstreamFaultError("a log probability of more than all")
    return logprob


def usage_of(reported: Any) -> Usage | None:
    if not isinstance(reported, dict):
        return None
    prompt = tokens_of(reported, "prompt_tokens")
    completion = tokens_of(reported, "completion_tokens")
    if prompt is None or completion is None:
        return None
    cached = tokens_of(reported.get("prompt_tokens_details"), "cached_tokens") or 0
    reasoning = tokens_of(reported.get("completion_tokens_details"), "reasoning_tokens") or 0
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=min(cached, prompt),
        reasoning_tokens=min(reasoning, completion),
    )
