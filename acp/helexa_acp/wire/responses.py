"""POST /responses, stateless: each request has the whole conversation, and nothing is stored."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from helexa_acp import history, wire
from helexa_acp.errors import EndpointError

PATH = "/responses"
headers = wire.bearer


def request_body(request: wire.ModelRequest) -> wire.Json:
    turns = wire.images_after_results(request.turns)
    body: wire.Json = {
        "model": request.model,
        "instructions": request.system,
        "input": [item for turn in turns for item in _items(turn)],
        "stream": True,
        "store": False,
    }
    if request.tools:
        body["tools"] = [
            {"type": "function", **tool.function(), "strict": False} for tool in request.tools
        ]
    if request.max_tokens is not None:
        body["max_output_tokens"] = request.max_tokens
    if request.reasoning_effort is not None:
        body["reasoning"] = {"effort": request.reasoning_effort, "summary": "auto"}
        body["include"] = ["reasoning.encrypted_content"]
    return body


def _items(turn: history.Turn) -> list[wire.Json]:
    match turn:
        case history.UserTurn(parts):
            return [{"type": "message", "role": "user", "content": _content(parts)}]
        case history.ToolResult():
            output = history.text_of(turn.parts)
            return [{"type": "function_call_output", "call_id": turn.call_id, "output": output}]
        case history.AssistantTurn():
            return _assistant_items(turn)


def _content(parts: tuple[history.Part, ...]) -> list[wire.Json]:
    return [
        {"type": "input_text", "text": part.text}
        if isinstance(part, history.Text)
        else {"type": "input_image", "image_url": wire.data_url(part), "detail": "auto"}
        for part in parts
    ]


def _assistant_items(turn: history.AssistantTurn) -> list[wire.Json]:
    """Reasoning goes back where its item can be read without having been stored."""
    sealed = [thought.sealed for thought in turn.thoughts if isinstance(thought.sealed, dict)]
    items = [item for item in sealed if item.get("type") == "reasoning"]
    if turn.text:
        items.append({"type": "message", "role": "assistant", "content": turn.text})
    items += [
        {
            "type": "function_call",
            "call_id": call.call_id,
            "name": wire.wire_name(call.name),
            "arguments": json.dumps(call.arguments),
        }
        for call in turn.calls
    ]
    return items


@dataclass(slots=True)
class Answer(wire.AnswerState):
    """A call may come in pieces, whole at its item's end or in the last event, or in several
    ways."""

    has_text: bool = False
    by_item: dict[str, wire.CallMade] = field(default_factory=dict)

    def feed(self, event: wire.JsonObject) -> list[wire.WireEvent]:
        match event.type:
            case "response.output_text.delta":
                self.has_text = True
                return [wire.TextDelta(event.delta)]
            case "response.refusal.delta":
                self.reason = "refusal"
                return [wire.TextDelta(event.delta)]
            case "response.reasoning_text.delta" | "response.reasoning_summary_text.delta":
                return [wire.ThoughtDelta(event.delta)]
            case "response.function_call_arguments.delta" if event.item_id in self.by_item:
                self.by_item[event.item_id].arguments += event.delta
            case "response.output_item.added" | "response.output_item.done" if (
                event.item.type == "function_call"
            ):
                self._add_call(event.item)
            case "response.output_item.done" if (
                event.item.type == "reasoning" and event.item.encrypted_content
            ):
                return [wire.ThoughtSealed(event.item.without_nulls())]
            case "response.completed" | "response.incomplete":
                return self._ended(event.response)
            case "response.failed":
                error = event.response.error or wire.JsonObject({})
                raise _failure(error.message or "the response failed", error.code)
            case "error":
                raise _failure(event.message, event.code)
        return []

    def _add_call(self, item: wire.JsonObject) -> None:
        call_id = item.call_id or item.id or ""
        call = next((one for one in self.calls if one.call_id == call_id), None)
        if call is None:
            call = wire.CallMade(call_id)
            self.calls.append(call)
        self.by_item[item.id or call_id] = call
        call.name = item.name or call.name
        call.arguments = item.arguments or call.arguments

    def _ended(self, response: wire.JsonObject) -> list[wire.WireEvent]:
        """Some servers send calls and texts only here."""
        events: list[wire.WireEvent] = []
        for item in response.output or ():
            if item.type == "function_call":
                self._add_call(item)
            elif item.type == "message" and not self.has_text:
                texts = [part.text for part in item.content or () if part.type == "output_text"]
                events += [wire.TextDelta(text) for text in texts if text]
        details = response.incomplete_details
        if details is not None and details.reason is not None:
            self.reason = "refusal" if details.reason == "content_filter" else "length"
        self.usage = wire.openai_usage(response.usage, "input", "output")
        self.is_ended = True
        return events


def _failure(message: Any, code: Any) -> EndpointError:
    code = code if isinstance(code, str) else None
    return EndpointError(str(message), status=400, code=code)
