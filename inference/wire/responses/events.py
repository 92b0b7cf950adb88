"""A Responses answer: the named events of its stream, and its response object.

    created ─▶ (queued) ─▶ in_progress ─▶ items … ─▶ completed | incomplete
                                   at any time: error ─▶ failed

Source: https://platform.openai.com/docs/api-reference/responses-streaming.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from inference.protocol.events import (
    Accepted,
    ChoiceFinished,
    Delta,
    Event,
    Finished,
    ReasoningDelta,
    TextLogprob,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from inference.wire.dialect import UnixClock
from inference.wire.error_envelopes import named_frame, openai_responses_errors
from inference.wire.errors import ApiError
from inference.wire.openai.answers import padded
from inference.wire.responses.output import (
    AnswerSettings,
    CallItem,
    MessageItem,
    OutputItem,
    ReasoningItem,
    Status,
    lost_turns,
    response_error,
    response_id,
    sampling_echo,
    usage_object,
)

DELTA_MARK = b".delta\ndata: "
"""Every frame of a delta has this, and no JSON string."""


class ResponseStreamEncoder:
    def __init__(
        self,
        settings: AnswerSettings,
        request_id: str,
        clock: UnixClock,
        *,
        writes_closings: bool = True,
    ) -> None:
        """``writes_closings``: frames that end an item are large with log probabilities."""
        self._settings = settings
        self._writes_closings = writes_closings
        self._request_id = request_id
        self._head = {
            "id": response_id(request_id),
            "object": "response",
            "created_at": clock(),
        }
        self._clock = clock
        self._completed_unix_s: int | None = None
        self._accepted: dict[str, Any] = {}
        self.next_number = 0
        self._output: list[dict[str, Any]] = []
        self._open: OutputItem | None = None
        self._pending_logprobs: list[TextLogprob] = []
        self._reason = ""
        self.response: dict[str, Any] | None = None

    def encode(self, event: Event) -> bytes:
        return self._padded(self._encoded(event))

    def parts(self, event: Event) -> Iterator[bytes]:
        """The three frames that close a message each contain all of its log probabilities."""
        if isinstance(event, ChoiceFinished):
            yield from map(self._padded, self._choice_finished(event))
        else:
            yield self.encode(event)

    def _padded(self, frames: bytes) -> bytes:
        return padded(frames, marks=DELTA_MARK) if self._settings.pads_deltas else frames

    def _encoded(self, event: Event) -> bytes:
        match event:
            case Delta():
                return self._text(event)
            case ReasoningDelta():
                return self._reasoning(event)
            case ToolCallDelta():
                assert self._open is not None, "arguments came before their call"
                return self._open.delta(event.arguments, self._next_number())
            case ToolCallStarted():
                return self._call(event)
            case Accepted():
                self._accepted = sampling_echo(event) | lost_turns(event)
                return self.opening() + self._lifecycle("in_progress")
            case ChoiceFinished():
                return b"".join(self._choice_finished(event))
            case Finished():
                status, fields = self._ending(event.usage)
                return self._lifecycle(status, **fields)
        return b""

    def opening(self) -> bytes:
        if self.response is not None:
            return b""
        if not self._settings.background:
            return self._lifecycle("in_progress", named="created")
        return self._lifecycle("queued", named="created") + self._lifecycle("queued")

    def failed(self, error: ApiError, *, names_error: bool = True) -> bytes:
        """``error`` has the exact code, ``response.failed`` one of OpenAI's. The latter needs a
        response; the former is left out on sockets, where each of them ends a response."""
        frames = self._close("incomplete")
        if names_error:
            frames += self._frame(*openai_responses_errors.error_event(error))
        if self.response is None:
            return frames
        return frames + self._lifecycle("failed", error=response_error(error))

    def cancelled(self, error: ApiError) -> bytes:
        """OpenAI has no other event for this than ``error``."""
        frames = self._close("incomplete") + self._frame(
            *openai_responses_errors.error_event(error)
        )
        self.response = self._object("cancelled")
        return frames

    def response_after(self, event: Finished) -> dict[str, Any]:
        status, fields = self._ending(event.usage)
        return self._object(status, **fields)

    def _text(self, event: Delta) -> bytes:
        """Tokens without text wait for their text; those of a call have none."""
        if event.logprobs is not None:
            self._pending_logprobs += event.logprobs
        if not event.text:
            return b""
        frames, message = b"", self._open
        if not isinstance(message, MessageItem):
            frames, message = self._open_message()
        if event.logprobs is None:
            return frames + message.delta(event.text, self._next_number())
        pending, self._pending_logprobs = self._pending_logprobs, []
        return frames + self._frame(*message.delta_with_logprobs(event.text, pending))

    def _reasoning(self, event: ReasoningDelta) -> bytes:
        frames = b""
        if event.text:
            item = self._open
            if not isinstance(item, ReasoningItem):
                item = ReasoningItem(
                    self._item_id("rs"),
                    self._next_index(),
                    as_summary=self._settings.summarises,
                    carries=self._settings.carries_reasoning,
                )
                frames = self._open_item(item)
            frames += item.delta(event.text, self._next_number())
        if event.closes is not None and isinstance(self._open, ReasoningItem):
            frames += self._close("completed")
        return frames

    def _call(self, event: ToolCallStarted) -> bytes:
        member = self._settings.members.get(event.name)
        return self._open_item(
            CallItem(
                self._item_id("fc"),
                self._next_index(),
                call_id=event.call_id,
                name=event.name if member is None else member.name,
                namespace=None if member is None else member.namespace,
            )
        )

    def _choice_finished(self, event: ChoiceFinished) -> Iterator[bytes]:
        self._reason = event.reason
        if self._pending_logprobs and isinstance(self._open, MessageItem):
            yield self._frame(*self._open.delta_with_logprobs("", self._pending_logprobs))
        if self._open is None and not self._output:
            yield self._open_message()[0]
        yield from self._closing("incomplete" if self._is_cut else "completed")

    def _ending(self, usage: Usage) -> tuple[str, dict[str, Any]]:
        used = {"usage": usage_object(usage)}
        if not self._is_cut:
            # Called twice for one answer: to store it, and to send it.
            self._completed_unix_s = self._completed_unix_s or self._clock()
            return "completed", {**used, "completed_at": self._completed_unix_s}
        return "incomplete", {**used, "incomplete_details": {"reason": "max_output_tokens"}}

    @property
    def _is_cut(self) -> bool:
        return self._reason in ("length", "context")

    def _open_message(self) -> tuple[bytes, MessageItem]:
        message = MessageItem(self._item_id("msg"), self._next_index())
        return self._open_item(message), message

    def _open_item(self, item: OutputItem) -> bytes:
        frames = self._close("completed")
        if not isinstance(item, MessageItem):
            self._pending_logprobs = []
        self._open = item
        return frames + b"".join([self._frame(*event) for event in item.opening()])

    def _close(self, status: Status) -> bytes:
        return b"".join(self._closing(status))

    def _closing(self, status: Status) -> Iterator[bytes]:
        item, self._open = self._open, None
        if item is None:
            return
        closing = item.closing(status)
        self._output.append(item.as_object(status))
        if self._writes_closings:
            for event in closing:
                yield self._frame(*event)
        else:
            self.next_number += len(closing)

    def _next_index(self) -> int:
        return len(self._output) + (self._open is not None)

    def _item_id(self, prefix: str) -> str:
        return f"{prefix}_{self._request_id}_{self._next_index()}"

    def _lifecycle(self, status: str, *, named: str = "", **fields: Any) -> bytes:
        self.response = self._object(status, **fields)
        return self._frame(f"response.{named or status}", {"response": self.response})

    def _object(self, status: str, **fields: Any) -> dict[str, Any]:
        ending = dict.fromkeys(("completed_at", "error", "incomplete_details", "usage")) | fields
        return {
            **self._head,
            "status": status,
            **self._settings.echo,
            **self._accepted,
            "output": [*self._output],
            **ending,
        }

    def _frame(self, kind: str, fields: dict[str, Any]) -> bytes:
        return named_frame(kind, fields, self._next_number())

    def _next_number(self) -> int:
        number = self.next_number
        self.next_number += 1
        return number


class ResponseBodyEncoder:
    def __init__(self, settings: AnswerSettings, request_id: str, clock: UnixClock) -> None:
        self._events = ResponseStreamEncoder(settings, request_id, clock, writes_closings=False)

    def response_after(self, event: Finished) -> dict[str, Any]:
        return self._events.response_after(event)

    @property
    def next_number(self) -> int:
        return self._events.next_number

    def encode(self, event: Event) -> bytes:
        self._events.encode(event)
        if not isinstance(event, Finished):
            return b""
        return orjson.dumps(self._events.response)
