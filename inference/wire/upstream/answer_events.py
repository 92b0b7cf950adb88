"""One answer of an upstream in any dialect, as our events.

    accept ─▶ think | write | begin_call, add_arguments, send_calls ─▶ finish ─▶ end

A tool call is held back until its arguments are complete; one whose arguments are not a JSON object
is text, as for our own models. Tokens that the upstream does not count are estimated by bytes. Of
server-sent events, only ``data`` is read: it has the event's type too. Source:
https://html.spec.whatwg.org/multipage/server-sent-events.html.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import orjson

from inference.protocol.events import (
    Accepted,
    ChoiceFinished,
    Delta,
    Embedded,
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    TextLogprob,
    TokensCounted,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)

MAX_FRAME_BYTES = 8 * 1024 * 1024
"""A frame may have all arguments of a tool call."""


class FrameError(ValueError):
    """The message has none of the stream's bytes."""


class LinesReader:
    """Takes bytes, cut anywhere. Raises ``FrameError`` for too large a frame."""

    frame = "a line"

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_bytes = max_bytes
        self._begun = bytearray()

    def feed(self, part: bytes) -> list[bytes]:
        return [line for line in self._lines(part) if line]

    def _lines(self, part: bytes) -> list[bytes]:
        *lines, rest = part.split(b"\n")
        if lines and self._begun:
            lines[0] = bytes(self._begun + lines[0])
            self._begun.clear()
        self._begun += rest
        self._check(max(len(self._begun), *map(len, lines)) if lines else len(self._begun))
        return [line.removesuffix(b"\r") for line in lines]

    def _check(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            raise FrameError(f"{self.frame} of more than {self._max_bytes:,} bytes")


class SseReader(LinesReader):
    frame = "an event"

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        super().__init__(max_bytes)
        self._data: list[bytes] = []
        self._num_data_bytes = 0

    def feed(self, part: bytes) -> list[bytes]:
        found: list[bytes] = []
        for line in self._lines(part):
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
                self._num_data_bytes += len(line)
                self._check(self._num_data_bytes)
            elif not line and self._data:
                found.append(b"\n".join(self._data))
                self._data, self._num_data_bytes = [], 0
        return found


BYTES_A_TOKEN = 4
MAX_CALLS = 1_024


class UpstreamFaultError(Exception):
    """The answer does not belong to the request; the message has none of its text."""


class UpstreamErrorObject(Exception):  # noqa: N818 - an answer as well
    def __init__(self, error: Any) -> None:
        super().__init__("an error object")
        self.error = error


class Answer(msgspec.Struct):
    error: Any = None


AnyAnswer = TypeVar("AnyAnswer", bound=Answer)


def decoded(decode: Callable[[bytes], AnyAnswer], data: bytes, otherwise: str) -> AnyAnswer:
    """``otherwise``: the error's words. Raises ``UpstreamFaultError``, ``UpstreamErrorObject``."""
    try:
        found = decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UpstreamFaultError(otherwise) from error
    if found.error is not None:
        raise UpstreamErrorObject(found.error)
    return found


@dataclass(slots=True)
class _HeldCall:
    id: str
    name: str
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _ChoiceState:
    calls: dict[int, _HeldCall] = field(default_factory=dict)
    num_begun: int = 0
    num_sent: int = 0
    is_broken: bool = False
    """A call of it was text, and so is every later one."""
    num_bytes: int = 0
    num_tokens: int = 0
    is_finished: bool = False


class AnswerEvents:
    """All but ``take`` raise ``UpstreamFaultError``."""

    def __init__(
        self,
        request_id: str,
        *,
        num_choices: int,
        prompt_tokens: int,
        max_prompt_tokens: int,
        max_output_tokens: int,
    ) -> None:
        """``num_choices``: 0 for vectors or a count. ``prompt_tokens`` is an estimate."""
        self._request_id = request_id
        self._choices = [_ChoiceState() for _ in range(num_choices)]
        self._prompt_tokens = prompt_tokens
        self._max_prompt_tokens = max_prompt_tokens
        self._left_tokens = max_output_tokens
        self._events: list[Event] = []
        self.reported_usage: Usage | None = None
        self.is_accepted = False
        self.has_begun = False
        """Text of a held call counts."""
        self.is_ended = False

    def accept(self, prompt_tokens: int | None = None) -> None:
        """``prompt_tokens``: the upstream's count; ignored if impossible."""
        if self.is_accepted:
            return
        self.is_accepted = True
        if prompt_tokens is not None and 0 <= prompt_tokens <= self._max_prompt_tokens:
            self._prompt_tokens = prompt_tokens
        self._events.append(
            Accepted(request_id=self._request_id, prompt_tokens=self._prompt_tokens)
        )

    def think(self, index: int, text: str) -> None:
        count = self._estimate(self._open_choice(index), text)
        self._events.append(
            ReasoningDelta(request_id=self._request_id, text=text, index=index, num_tokens=count)
        )

    def write(self, index: int, text: str, logprobs: list[TextLogprob] | None = None) -> None:
        count, request_id = self._estimate(self._open_choice(index), text), self._request_id
        self._events.append(
            Delta(
                request_id=request_id, text=text, index=index, num_tokens=count, logprobs=logprobs
            )
        )

    def begin_call(self, index: int, key: int | None, name: str | None, call_id: str | None) -> int:
        """``key``: the upstream's number of the call. Returns it."""
        state = self._open_choice(index)
        if not name or state.num_begun >= MAX_CALLS:
            raise UpstreamFaultError("a tool call without a name, or too many")
        if key is None:
            key = max(state.calls, default=-1) + 1
        if key in state.calls:
            raise UpstreamFaultError("two tool calls of one number")
        call_id = call_id or f"call_{self._request_id}_{state.num_begun}"
        state.calls[key] = _HeldCall(call_id, name)
        state.num_begun += 1
        return key

    def has_call(self, index: int, key: int) -> bool:
        return key in self._choice(index).calls

    def add_arguments(self, index: int, key: int, arguments: str) -> None:
        held = self._open_choice(index).calls.get(key)
        if held is None:
            raise UpstreamFaultError("arguments of no tool call")
        held.arguments.append(arguments)

    def send_calls(self, index: int) -> None:
        """A broken call is text, and so is what follows it."""
        state = self._open_choice(index)
        for held in state.calls.values():
            arguments = "".join(held.arguments) or "{}"
            state.is_broken = state.is_broken or not _is_object(arguments)
            if state.is_broken:
                name = orjson.dumps(held.name).decode()
                self.write(index, f'{{"name": {name}, "arguments": {arguments}}}')
            else:
                at: Any = {"request_id": self._request_id, "index": index}
                at["call_index"] = state.num_sent
                num_tokens = self._estimate(state, held.name + arguments)
                self._events += (
                    ToolCallStarted(call_id=held.id, name=held.name, **at),
                    ToolCallDelta(arguments=arguments, num_tokens=num_tokens, **at),
                )
                state.num_sent += 1
        state.calls.clear()

    def finish(self, index: int, reason: FinishReason, stop_sequence: str | None = None) -> None:
        state = self._open_choice(index)
        self.send_calls(index)
        if reason in ("stop", "tool_calls"):
            reason = "tool_calls" if state.num_sent else "stop"
        state.is_finished = self.has_begun = True
        self._events.append(
            ChoiceFinished(
                request_id=self._request_id,
                reason=reason,
                index=index,
                stop_sequence=stop_sequence if reason == "stop" else None,
            )
        )

    def embed(self, vectors: list[bytes]) -> None:
        self.has_begun = self.is_ended = True
        usage = self.reported_usage or self.estimated_usage
        self._events.append(Embedded(request_id=self._request_id, vectors=vectors, usage=usage))

    def count(self, prompt_tokens: int) -> None:
        self.is_accepted = self.has_begun = self.is_ended = True
        self._events.append(TokensCounted(request_id=self._request_id, prompt_tokens=prompt_tokens))

    def is_finished(self, index: int) -> bool:
        return self._choice(index).is_finished

    @property
    def has_finished(self) -> bool:
        return all(choice.is_finished for choice in self._choices)

    def end(self) -> None:
        """Later calls are ignored."""
        if self.is_ended:
            return
        if not self.is_accepted or not self.has_finished:
            raise UpstreamFaultError("an answer that broke off")
        self.is_ended = True
        usage = self.reported_usage or self.estimated_usage
        self._events.append(Finished(request_id=self._request_id, usage=usage))

    def take(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    @property
    def estimated_usage(self) -> Usage:
        completion_tokens = sum(choice.num_tokens for choice in self._choices)
        return Usage(prompt_tokens=self._prompt_tokens, completion_tokens=completion_tokens)

    def _choice(self, index: int) -> _ChoiceState:
        if not 0 <= index < len(self._choices):
            raise UpstreamFaultError("a choice that was not asked for")
        return self._choices[index]

    def _open_choice(self, index: int) -> _ChoiceState:
        state = self._choice(index)
        if not self.is_accepted or state.is_finished:
            raise UpstreamFaultError("text before an answer, or of a choice that has finished")
        self.has_begun = True
        return state

    def _estimate(self, state: _ChoiceState, text: str) -> int:
        state.num_bytes += len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
        num_tokens = math.ceil(state.num_bytes / BYTES_A_TOKEN)
        added = max(0, min(num_tokens - state.num_tokens, self._left_tokens))
        state.num_tokens += added
        self._left_tokens -= added
        return added


class AnswerReader:
    def __init__(self, answer: AnswerEvents, *, wants_logprobs: bool = False) -> None:
        self._answer = answer
        self._wants_logprobs = wants_logprobs

    def read(self, data: bytes) -> list[Event]:
        """A frame or a whole answer. Raises ``UpstreamFaultError``, ``UpstreamErrorObject``."""
        raise NotImplementedError


def reason_of(reasons: Mapping[str, FinishReason], given: str) -> FinishReason:
    if given not in reasons:
        raise UpstreamFaultError("an unknown reason for an answer's end")
    return reasons[given]


def tokens_of(table: Any, name: str) -> int | None:
    """``None``: missing or impossible."""
    value = table.get(name) if isinstance(table, dict) else None
    return value if type(value) is int and value >= 0 else None


def _is_object(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False
