"""POST /chat/completions.

Thoughts come as ``reasoning_content`` (or ``reasoning``), or between markers in the content, as
helexa does for the header ``x-include-thinking``: ``helexa_acp.asking`` finds those.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from helexa_acp import history, wire

PATH = "/chat/completions"
REASONS: dict[str, wire.Reason] = {"length": "length", "content_filter": "refusal"}
headers = wire.bearer


def request_body(request: wire.ModelRequest) -> wire.Json:
    """``max_tokens``, not its newer name: more servers support it."""
    body: wire.Json = {
        "model": request.model,
        "messages": [
            {"role": "system", "content": request.system},
            *map(_message, wire.images_after_results(request.turns)),
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        body["tools"] = [{"type": "function", "function": one.function()} for one in request.tools]
    if request.max_tokens is not None:
        body["max_tokens"] = request.max_tokens
    if request.reasoning_effort is not None:
        body["reasoning_effort"] = request.reasoning_effort
    return body


def _message(turn: history.Turn) -> wire.Json:
    match turn:
        case history.UserTurn(parts):
            return {"role": "user", "content": _content(parts)}
        case history.ToolResult():
            content = history.text_of(turn.parts)
            return {"role": "tool", "tool_call_id": turn.call_id, "content": content}
        case history.AssistantTurn(text=text, calls=()):
            return {"role": "assistant", "content": text}
        case history.AssistantTurn():
            calls = [
                {
                    "id": call.call_id,
                    "type": "function",
                    "function": {
                        "name": wire.wire_name(call.name),
                        "arguments": json.dumps(call.arguments),
                    },
                }
                for call in turn.calls
            ]
            return {"role": "assistant", "content": turn.text, "tool_calls": calls}


def _content(parts: tuple[history.Part, ...]) -> str | list[wire.Json]:
    if not any(isinstance(part, history.Image) for part in parts):
        return history.text_of(parts)
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, history.Text)
        else {"type": "image_url", "image_url": {"url": wire.data_url(part)}}
        for part in parts
    ]


@dataclass(slots=True)
class Answer(wire.AnswerState):
    by_index: dict[int | None, wire.CallMade] = field(default_factory=dict)
    """The latest call of each index; some servers omit the index."""

    def feed(self, chunk: wire.JsonObject) -> list[wire.WireEvent]:
        if chunk.usage is not None:
            self.usage = wire.openai_usage(chunk.usage, "prompt", "completion")
        events: list[wire.WireEvent] = []
        for choice in chunk.choices or ():
            if choice.delta is not None:
                events += self._delta(choice.delta)
            if choice.finish_reason:
                self.is_ended = True
                self.reason = REASONS.get(choice.finish_reason, self.reason)
        return events

    def _delta(self, delta: wire.JsonObject) -> list[wire.WireEvent]:
        events: list[wire.WireEvent] = []
        thought = delta.reasoning_content or delta.reasoning
        if isinstance(thought, str):
            events.append(wire.ThoughtDelta(thought))
        if delta.content:
            events.append(wire.TextDelta(delta.content))
        if delta.refusal:
            self.reason = "refusal"
            events.append(wire.TextDelta(delta.refusal))
        for piece in delta.tool_calls or ():
            self._add_to_call(piece)
        return events

    def _add_to_call(self, piece: wire.JsonObject) -> None:
        function = piece.function or wire.JsonObject({})
        call_id, name, arguments = piece.id or "", function.name or "", function.arguments or ""
        call = self.by_index.get(piece.index)
        if call is None or _begins_another(call, call_id, name, arguments):
            call = self.by_index[piece.index] = wire.CallMade()
            self.calls.append(call)
        call.call_id = call.call_id or call_id
        if name != call.name:  # some servers repeat it with every piece
            call.name += name
        call.arguments += arguments


def _begins_another(call: wire.CallMade, call_id: str, name: str, arguments: str) -> bool:
    """Some servers give every call the same index, and some every piece an id of its own: only a
    piece with a name begins a call."""
    if not name:
        return False
    if call_id and call.call_id:
        return call_id != call.call_id
    return bool(arguments) and _is_object(call.arguments)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
