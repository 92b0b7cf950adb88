"""POST /responses, stateless: each request has the whole conversation, and nothing is stored."""

from __future__ import annotations

import json
from typing import Any

from helexa_acp.errors import EndpointError
from helexa_acp.history import (
    AssistantTurn,
    Image,
    Part,
    Text,
    ToolResult,
    Turn,
    Usage,
    UserTurn,
    text_of,
)
from helexa_acp.wire import (
    CallMade,
    Finished,
    ImageMade,
    JsonObject,
    ModelRequest,
    OpenCall,
    Reason,
    TextDelta,
    ThoughtDelta,
    ThoughtSealed,
    WireEvent,
    bearer,
    images_after_results,
    wire_name,
)
from helexa_acp.wire.chat import data_url

PATH = "/responses"
headers = bearer


def request_body(request: ModelRequest) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": request.model,
        "instructions": request.system,
        "input": input_items(request.turns),
        "stream": True,
        "store": False,
    }
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                "strict": False,
            }
            for tool in request.tools
        ]
    if request.max_tokens is not None:
        body["max_output_tokens"] = request.max_tokens
    if request.reasoning_effort is not None:
        body["reasoning"] = {"effort": request.reasoning_effort, "summary": "auto"}
        body["include"] = ["reasoning.encrypted_content"]
    return body


def input_items(turns: tuple[Turn, ...]) -> list[dict[str, Any]]:
    return [item for turn in images_after_results(turns) for item in _items(turn)]


def _items(turn: Turn) -> list[dict[str, Any]]:
    match turn:
        case UserTurn(parts):
            return [_user_item(parts)]
        case ToolResult():
            output = text_of(turn.parts)
            return [{"type": "function_call_output", "call_id": turn.call_id, "output": output}]
        case AssistantTurn():
            return _assistant_items(turn)


def _user_item(parts: tuple[Part, ...]) -> dict[str, Any]:
    content = [
        {"type": "input_text", "text": part.text}
        if isinstance(part, Text)
        else {"type": "input_image", "image_url": data_url(part), "detail": "auto"}
        for part in parts
    ]
    return {"type": "message", "role": "user", "content": content}


def _assistant_items(turn: AssistantTurn) -> list[dict[str, Any]]:
    """Reasoning goes back where its item can be read without having been stored."""
    items = [thought.sealed for thought in turn.thoughts if _is_item(thought.sealed)]
    if turn.text:
        items.append({"type": "message", "role": "assistant", "content": turn.text})
    items += [
        {
            "type": "function_call",
            "call_id": call.call_id,
            "name": wire_name(call.name),
            "arguments": json.dumps(call.arguments),
        }
        for call in turn.calls
    ]
    return items


def _is_item(sealed: Any) -> bool:
    return isinstance(sealed, dict) and sealed.get("type") == "reasoning"


class Answer:
    """Folds the stream's events into ours."""

    def __init__(self) -> None:
        self.is_ended = False
        self._is_refused = False
        self._has_text = False
        self._calls: dict[str, OpenCall] = {}
        """Calls that have begun, by their items' identifiers."""
        self._done: set[str] = set()

    def feed(self, event: JsonObject) -> list[WireEvent]:
        match event.type:
            case "response.output_text.delta":
                self._has_text = True
                return [TextDelta(event.delta)]
            case "response.output_item.added":
                return self._added(event.item)
            case "response.function_call_arguments.delta" if event.item_id in self._calls:
                self._calls[event.item_id].arguments += event.delta
            case "response.function_call_arguments.done" if event.item_id in self._calls:
                self._calls[event.item_id].arguments = event.arguments or ""
            case "response.refusal.delta":
                self._is_refused = True
                return [TextDelta(event.delta)]
            case "response.reasoning_text.delta" | "response.reasoning_summary_text.delta":
                return [ThoughtDelta(event.delta)]
            case "response.output_item.done":
                return self._item_done(event.item)
            case "response.completed" | "response.incomplete":
                return [*self._left(event.response), self._finished(event.response)]
            case "response.failed":
                error = event.response.error
                message = getattr(error, "message", None) or "the response failed"
                code = getattr(error, "code", None)
                raise EndpointError(
                    message, status=400, code=code if isinstance(code, str) else None
                )
            case "error":
                raise EndpointError(event.message, status=400, code=event.code)
        return []

    def finish(self) -> list[WireEvent]:
        """Raises ValueError where the stream was incomplete."""
        if not self.is_ended:
            raise ValueError("it ended without response.completed")
        return []

    def _added(self, item: JsonObject) -> list[WireEvent]:
        if item.type == "function_call":
            key = item.id or item.call_id or ""
            made = OpenCall(item.call_id or item.id or "", item.name or "", item.arguments or "")
            self._calls[key] = made
        return []

    def _item_done(self, item: JsonObject) -> list[WireEvent]:
        if item.type == "function_call":
            self._calls.pop(item.id or item.call_id or "", None)
            if item.call_id is not None:
                self._done.add(item.call_id)
        return _item_done(item)

    def _left(self, response: JsonObject) -> list[WireEvent]:
        """Events for parts that only the whole response has, and calls that began and never ended
        by an event of their own."""
        events: list[WireEvent] = []
        for item in response.output or ():
            if not isinstance(item, JsonObject):
                continue
            if item.type == "function_call" and (item.call_id or item.id) not in self._done:
                events += self._item_done(item)
            elif item.type == "message" and not self._has_text:
                texts = [part.text for part in item.content or () if part.type == "output_text"]
                events += [TextDelta(text) for text in texts if text]
        made = {event.call_id for event in events if isinstance(event, CallMade)}
        events += [call.made() for call in self._calls.values() if call.call_id not in made]
        self._calls.clear()
        return events

    def _finished(self, response: JsonObject) -> WireEvent:
        self.is_ended = True
        reason: Reason = "refusal" if self._is_refused else "stop"
        details = response.incomplete_details
        if details is not None and details.reason is not None:
            reason = "refusal" if details.reason == "content_filter" else "length"
        return Finished(reason, _usage(response.usage))


def _item_done(item: JsonObject) -> list[WireEvent]:
    match item.type:
        case "function_call":
            return [CallMade(item.call_id or "", item.name or "", item.arguments or "")]
        case "reasoning" if item.encrypted_content:
            return [ThoughtSealed(item.without_nulls())]
        case "image_generation_call" if item.result:
            return [ImageMade(Image("image/png", item.result))]
        case _:
            return []


def _usage(counts: JsonObject | None) -> Usage:
    if counts is None:
        return Usage()
    given, made = counts.input_tokens_details, counts.output_tokens_details
    return Usage(
        input_tokens=counts.input_tokens or 0,
        output_tokens=counts.output_tokens or 0,
        cached_tokens=getattr(given, "cached_tokens", None) or 0,
        thought_tokens=getattr(made, "reasoning_tokens", None) or 0,
        last_total_tokens=(counts.input_tokens or 0) + (counts.output_tokens or 0),
    )
