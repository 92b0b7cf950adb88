"""An upstream's streamed chat or text completion, of OpenAI's dialect, as our events. Pure.

    data ─▶ accept ─▶ think | write | calls ─▶ finish ─▶ [DONE] ─▶ end

Only fields for our events are read; a field of another type is an error. An answer that is not
streamed is read as one chunk.
"""

from __future__ import annotations

from typing import Any

import msgspec

from inference.protocol.events import Event, FinishReason, TextLogprob, Usage
from inference.wire.upstream.answer_events import (
    AnswerEvents,
    UpstreamFaultError,
    decoded,
    tokens_of,
)

MAX_LOGPROB = 0.01


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


def logprobs_of(value: Any) -> list[TextLogprob] | None:
    """Raises ``UpstreamFaultError``."""
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


DONE = b"[DONE]"
REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "stop",
}
"""Ours lack a reason for a filter's end."""


class ChatEvents:
    def __init__(self, answer: AnswerEvents, *, wants_logprobs: bool = False) -> None:
        self._answer = answer
        self._wants_logprobs = wants_logprobs

    def read(self, data: bytes) -> list[Event]:
        """Raises ``UpstreamFaultError``, ``UpstreamErrorObject``."""
        if data == DONE:
            self._answer.end()
            return self._answer.take()
        chunk = decoded(_decode, data, "what is no chunk of an answer")
        if chunk.usage is not None:
            self._answer.reported_usage = usage_of(chunk.usage)
        if chunk.choices is None and chunk.usage is None:
            raise UpstreamFaultError("a chunk without choices")
        self._answer.accept()
        for choice in chunk.choices or ():
            self._choice(choice)
        return self._answer.take()

    def _choice(self, read: Choice) -> None:
        answer, index = self._answer, read.index
        added = read.delta or read.message
        if answer.is_finished(index):
            if _adds_text(read, added):
                raise UpstreamFaultError("text of a choice that has finished")
            return
        if added is not None:
            if thought := added.reasoning_content or added.reasoning:
                answer.think(index, thought)
            for call in added.tool_calls or ():
                self._call(index, call)
        text = read.text or (added and (added.content or added.refusal)) or ""
        logprobs = self._logprobs(read)
        if text or logprobs:
            answer.write(index, text, logprobs)
        if read.finish_reason is not None:
            reason = REASONS.get(read.finish_reason)
            if reason is None:
                raise UpstreamFaultError("an unknown reason for an answer's end")
            answer.finish(index, reason)

    def _call(self, index: int, call: Call) -> None:
        function, key = call.function or Function(), call.index
        if key is None or not self._answer.has_call(index, key):
            key = self._answer.begin_call(index, key, function.name, call.id)
        if function.arguments:
            self._answer.add_arguments(index, key, function.arguments)

    def _logprobs(self, read: Choice) -> list[TextLogprob] | None:
        is_wanted = self._wants_logprobs and read.logprobs is not None
        return logprobs_of(read.logprobs) if is_wanted else None


def _adds_text(read: Choice, added: Message | None) -> bool:
    if added is None:
        return bool(read.text)
    thought = added.reasoning_content or added.reasoning
    return bool(read.text or added.content or added.refusal or added.tool_calls or thought)
