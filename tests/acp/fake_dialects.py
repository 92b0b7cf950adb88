"""One answer as the frames of each dialect."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

NUM_BEGINNING = 4
"""The number of frames that begin an answer and end none, in every dialect."""
REASONS = {
    "/v1/chat/completions": {"stop": "stop", "length": "length", "refusal": "content_filter"},
    "/v1/messages": {"stop": "end_turn", "length": "max_tokens", "refusal": "refusal"},
}


@dataclass(frozen=True, slots=True)
class Reply:
    text: str = ""
    calls: tuple[tuple[str, Any], ...] = ()
    """Names and arguments; arguments that are a string are sent as they are."""
    thought: str = ""
    reason: str = "stop"
    num_input: int = 100
    num_output: int = 10
    call_id: str = "call"

    def written_calls(self) -> list[tuple[str, str, str]]:
        return [
            (f"{self.call_id}_{i}", name, args if isinstance(args, str) else json.dumps(args))
            for i, (name, args) in enumerate(self.calls)
        ]


def _data(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"


def _event(body: dict[str, Any]) -> str:
    return f"event: {body['type']}\ndata: {json.dumps(body)}\n\n"


def _pieces(text: str) -> list[str]:
    """Cuts the text in the middle of words and markers."""
    return [text[i : i + 3] for i in range(0, len(text), 3)]


def chat_frames(script: Reply) -> list[str]:
    def chunk(delta: dict[str, Any], reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return _data({**base, "choices": [choice]})

    base = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "fake-model"}
    frames = [chunk({"role": "assistant", "content": ""})]
    content = (f"<think>{script.thought}</think>" if script.thought else "") + script.text
    frames += [chunk({"content": piece}) for piece in _pieces(content)]
    for index, (call_id, name, written) in enumerate(script.written_calls()):
        head = {"index": index, "id": call_id, "type": "function"}
        frames.append(chunk({"tool_calls": [head | {"function": {"name": name}}]}))
        for piece in _pieces(written):
            call = {"index": index, "function": {"arguments": piece}}
            frames.append(chunk({"tool_calls": [call]}))
    frames.append(chunk({}, REASONS["/v1/chat/completions"][script.reason]))
    usage = {
        "prompt_tokens": script.num_input,
        "completion_tokens": script.num_output,
        "total_tokens": script.num_input + script.num_output,
    }
    return [*frames, _data({**base, "choices": [], "usage": usage}), "data: [DONE]\n\n"]


def responses_frames(script: Reply) -> list[str]:
    response = {
        "id": "r",
        "object": "response",
        "created_at": 0,
        "model": "fake-model",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "status": "in_progress",
    }
    where = {"item_id": "i", "output_index": 0, "content_index": 0}
    bodies: list[dict[str, Any]] = [
        {"type": "response.created", "response": response},
        {"type": "response.in_progress", "response": response},
    ]
    for piece in _pieces(script.thought):
        bodies.append({"type": "response.reasoning_text.delta", **where, "delta": piece})
    for piece in _pieces(script.text):
        bodies.append(
            {"type": "response.output_text.delta", **where, "delta": piece, "logprobs": []}
        )
    for call_id, name, written in script.written_calls():
        call = {"type": "function_call", "id": "f", "call_id": call_id, "name": name}
        item = call | {"arguments": written, "status": "completed"}
        bodies.append({"type": "response.output_item.done", "output_index": 0, "item": item})
    usage = {
        "input_tokens": script.num_input,
        "output_tokens": script.num_output,
        "total_tokens": script.num_input + script.num_output,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    status = "completed" if script.reason == "stop" else "incomplete"
    cause = {"length": "max_output_tokens", "refusal": "content_filter"}.get(script.reason)
    details = {"reason": cause} if cause else None
    ended = {**response, "status": status, "usage": usage, "incomplete_details": details}
    bodies.append({"type": f"response.{status}", "response": ended})
    return [_event(body | {"sequence_number": i}) for i, body in enumerate(bodies)]


def messages_frames(script: Reply) -> list[str]:
    message = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "fake-model",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": script.num_input, "output_tokens": 0},
    }
    bodies: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    if script.thought:
        thinking = [{"type": "thinking_delta", "thinking": p} for p in _pieces(script.thought)]
        signed = {"type": "signature_delta", "signature": f"signed {len(script.thought)}"}
        empty = {"type": "thinking", "thinking": "", "signature": ""}
        blocks.append((empty, [*thinking, signed]))
    if script.text:
        texts = [{"type": "text_delta", "text": piece} for piece in _pieces(script.text)]
        blocks.append(({"type": "text", "text": ""}, texts))
    for call_id, name, written in script.written_calls():
        pieces = [{"type": "input_json_delta", "partial_json": p} for p in _pieces(written)]
        blocks.append(({"type": "tool_use", "id": call_id, "name": name, "input": {}}, pieces))
    for index, (block, deltas) in enumerate(blocks):
        bodies.append({"type": "content_block_start", "index": index, "content_block": block})
        bodies += [{"type": "content_block_delta", "index": index, "delta": d} for d in deltas]
        bodies.append({"type": "content_block_stop", "index": index})
    reason = "tool_use" if script.calls else REASONS["/v1/messages"][script.reason]
    if script.reason != "stop":
        reason = REASONS["/v1/messages"][script.reason]
    bodies.append(
        {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": {"output_tokens": script.num_output},
        }
    )
    return [_event(body) for body in [*bodies, {"type": "message_stop"}]]


FRAMES: dict[str, Callable[[Reply], list[str]]] = {
    "/v1/chat/completions": chat_frames,
    "/v1/responses": responses_frames,
    "/v1/messages": messages_frames,
}
