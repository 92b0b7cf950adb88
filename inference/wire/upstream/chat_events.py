"""An upstream's streamed chat or text completion, of OpenAI's dialect, as our events. Pure.

    data ─▶ accept ─▶ think | write | calls ─▶ finish ─▶ [DONE] ─▶ end

An answer that is not streamed is read as one chunk.
"""

from __future__ import annotations

from inference.protocol.events import Event, FinishReason, TextLogprob
from inference.wire.upstream.answer_events import (
    AnswerEvents,
    UpstreamErrorObject,
    UpstreamFaultError,
)
from inference.wire.upstream.chat_chunks import (
    Call,
    Choice,
    Function,
    Message,
    chunk_of,
    logprobs_of,
    usage_of,
)

DONE = b"[DONE]"
REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "stop",
}
"""Ours have no word for a filter's end."""


class ChatEvents:
    """An ``AnswerReader``."""

    def __init__(self, answer: AnswerEvents, *, wants_logprobs: bool = False) -> None:
        self._answer = answer
        self._wants_logprobs = wants_logprobs

    def read(self, data: bytes) -> list[Event]:
        """Raises ``UpstreamFaultError``, ``UpstreamErrorObject``."""
        if data == DONE:
            self._answer.end()
            return self._answer.take()
        chunk = chunk_of(data)
        if chunk.error is not None:
            raise UpstreamErrorObject(chunk.error)
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
        """``None`` where none were asked for: text completions have another form."""
        is_wanted = self._wants_logprobs and read.logprobs is not None
        return logprobs_of(read.logprobs) if is_wanted else None


def _adds_text(read: Choice, added: Message | None) -> bool:
    if added is None:
        return bool(read.text)
    thought = added.reasoning_content or added.reasoning
    return bool(read.text or added.content or added.refusal or added.tool_calls or thought)
