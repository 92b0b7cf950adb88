"""Streams in the shapes of other servers, after their public documentation: their events."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from helexa_acp.wire import (
    CallMade,
    Finished,
    TextDelta,
    ThoughtDelta,
    WireEvent,
    chat,
    messages,
    responses,
)
from helexa_acp.wire.client import fed
from tests.cases import each_case

LS = CallMade("call_1", "bash", '{"command": "ls"}')
Json = dict[str, Any]


def chunk(delta: Json, finish: str | None = None, **more: Any) -> Json:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish, **more}]}


def call_delta(**fields: Any) -> Json:
    return {"tool_calls": [fields]}


CHAT: dict[str, list[Json]] = {
    "OpenAI: arguments in pieces, usage in a chunk of its own": [
        chunk({"role": "assistant", "content": None}),
        chunk(
            call_delta(
                index=0, id="call_1", type="function", function={"name": "bash", "arguments": ""}
            )
        ),
        chunk(call_delta(index=0, function={"arguments": '{"command"'})),
        chunk(call_delta(index=0, function={"arguments": ': "ls"}'})),
        chunk({}, "tool_calls"),
        {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}},
    ],
    "LM Studio: the role with every piece": [
        chunk(
            {
                "role": "assistant",
                **call_delta(
                    index=0,
                    id="call_1",
                    type="function",
                    function={"name": "bash", "arguments": ""},
                ),
            }
        ),
        chunk({"role": "assistant", **call_delta(index=0, function={"arguments": '{"command": '})}),
        chunk({"role": "assistant", **call_delta(index=0, function={"arguments": '"ls"}'})}),
        chunk({}, "tool_calls"),
    ],
    "vLLM: the name first, reasoning_content, stop_reason": [
        chunk({"role": "assistant", "content": ""}, logprobs=None),
        chunk({"reasoning_content": "Look."}),
        chunk(call_delta(index=0, id="call_1", type="function", function={"name": "bash"})),
        chunk(call_delta(index=0, function={"arguments": '{"command": "ls"}'})),
        chunk({"content": ""}, "tool_calls", stop_reason=None),
    ],
    "Ollama: the whole call in one chunk, finish_reason stop": [
        chunk(
            {
                "role": "assistant",
                "content": "",
                **call_delta(
                    index=0,
                    id="call_1",
                    type="function",
                    function={"name": "bash", "arguments": '{"command": "ls"}'},
                ),
            }
        ),
        chunk({"role": "assistant", "content": ""}, "stop"),
    ],
    "OpenRouter: reasoning beside the call, no index": [
        chunk(
            {"role": "assistant", "content": "", "reasoning": "Look."}, native_finish_reason=None
        ),
        chunk(
            call_delta(
                id="call_1",
                type="function",
                function={"name": "bash", "arguments": '{"command": "ls"}'},
            )
        ),
        chunk({"content": ""}, "tool_calls", native_finish_reason="tool_use"),
    ],
    "a proxy: id and name with every piece": [
        chunk(call_delta(index=0, id="call_1", function={"name": "bash", "arguments": piece}))
        for piece in ('{"command"', ': "ls"}')
    ]
    + [chunk({}, "tool_calls")],
    "vLLM before 0.8: another id with every piece": [
        chunk(call_delta(index=0, id="call_1", function={"name": "bash", "arguments": ""})),
        chunk(call_delta(index=0, id="call_8", function={"arguments": '{"command": "ls"}'})),
        chunk({}, "tool_calls"),
    ],
}


def block(kind: str, index: int, **fields: Any) -> Json:
    return {"type": f"content_block_{kind}", "index": index, **fields}


def tool_use(arguments: Json) -> Json:
    return {"type": "tool_use", "id": "call_1", "name": "bash", "input": arguments}


STOP = [
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 3}},
    {"type": "message_stop"},
]
MESSAGES: dict[str, list[Json]] = {
    "Anthropic: text and input in deltas": [
        {"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1}}},
        block("start", 0, content_block={"type": "text", "text": ""}),
        {"type": "ping"},
        block("delta", 0, delta={"type": "text_delta", "text": "I look."}),
        block("stop", 0),
        block("start", 1, content_block=tool_use({})),
        block("delta", 1, delta={"type": "input_json_delta", "partial_json": '{"command"'}),
        block("delta", 1, delta={"type": "input_json_delta", "partial_json": ': "ls"}'}),
        block("stop", 1),
        *STOP,
    ],
    "a proxy: text and input whole in content_block_start": [
        {"type": "message_start", "message": {"usage": {"input_tokens": 9}}},
        block("start", 0, content_block={"type": "text", "text": "I look."}),
        block("stop", 0),
        block("start", 1, content_block=tool_use({"command": "ls"})),
        block("stop", 1),
        *STOP,
    ],
    "LM Studio, Ollama: input whole in one delta": [
        {"type": "message_start", "message": {"usage": {}}},
        block("start", 0, content_block={"type": "text", "text": "I look."}),
        block("delta", 0, delta={"type": "text_delta", "text": ""}),
        block("stop", 0),
        block("start", 1, content_block=tool_use({})),
        block("delta", 1, delta={"type": "input_json_delta", "partial_json": '{"command": "ls"}'}),
        block("stop", 1),
        *STOP,
    ],
}


def item(arguments: str, **more: Any) -> Json:
    return {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "bash",
        "arguments": arguments,
        **more,
    }


WHOLE = item('{"command": "ls"}', status="completed")
BEGUN = {"type": "response.output_item.added", "output_index": 1, "item": item("")}
PIECES = [
    {
        "type": "response.function_call_arguments.delta",
        "item_id": "fc_1",
        "output_index": 1,
        "delta": piece,
    }
    for piece in ('{"command"', ': "ls"}')
]
TEXT = {"type": "response.output_text.delta", "item_id": "msg_1", "delta": "I look."}
MESSAGE = {"type": "message", "content": [{"type": "output_text", "text": "I look."}]}


def completed(*output: Json) -> Json:
    return {"type": "response.completed", "response": {"output": list(output), "usage": {}}}


RESPONSES: dict[str, list[Json]] = {
    "OpenAI: every event": [
        *(TEXT, BEGUN, *PIECES),
        {
            "type": "response.function_call_arguments.done",
            "item_id": "fc_1",
            "arguments": '{"command": "ls"}',
        },
        {"type": "response.output_item.done", "output_index": 1, "item": WHOLE},
        completed(MESSAGE, WHOLE),
    ],
    "vLLM, LM Studio: no output_item.done": [TEXT, BEGUN, *PIECES, completed(MESSAGE, WHOLE)],
    "pieces, and an empty output at the end": [TEXT, BEGUN, *PIECES, completed()],
    "everything in response.completed": [completed(MESSAGE, WHOLE)],
}


def text_and_calls(events: Sequence[WireEvent]) -> tuple[str, list[CallMade]]:
    texts = [event.text for event in events if isinstance(event, TextDelta)]
    return "".join(texts), [event for event in events if isinstance(event, CallMade)]


@each_case("name", CHAT)
def test_chat_completions(name: str) -> None:
    answer = chat.Answer()
    events = [
        event for one in CHAT[name] for event in fed(answer, json.dumps(one))
    ] + answer.finish()
    assert text_and_calls(events) == ("", [LS])
    if "easoning" in name:
        assert ThoughtDelta("Look.") in events
    assert isinstance(events[-1], Finished)


@each_case("ids", [("call_0", "call_1"), ("", "")], ids=["ids", "no ids"])
@each_case("index", [0, None])
def test_two_calls_of_one_index_are_two(index: int | None, ids: tuple[str, str]) -> None:
    """Ollama and Gemini give every call the index 0, in chunks of their own or in one."""
    written = ('{"command": "ls"}', '{"command": "pwd"}')
    deltas = [
        {"index": index, "id": call_id, "function": {"name": "bash", "arguments": arguments}}
        for call_id, arguments in zip(ids, written, strict=True)
    ]
    calls = [CallMade(call_id, "bash", text) for call_id, text in zip(ids, written, strict=True)]
    apart = [chunk({"tool_calls": [one]}) for one in deltas]
    for chunks in (apart, [chunk({"tool_calls": deltas})]):
        answer = chat.Answer()
        events = [
            event for one in (*chunks, chunk({}, "stop")) for event in fed(answer, json.dumps(one))
        ]
        assert text_and_calls([*events, *answer.finish()]) == ("", calls)


@each_case("name", MESSAGES)
def test_messages(name: str) -> None:
    answer = messages.Answer()
    events = [event for one in MESSAGES[name] for event in fed(answer, json.dumps(one))]
    assert text_and_calls(events + answer.finish()) == ("I look.", [LS])


@each_case("name", RESPONSES)
def test_responses(name: str) -> None:
    answer = responses.Answer()
    events = [event for one in RESPONSES[name] for event in fed(answer, json.dumps(one))]
    assert text_and_calls(events + answer.finish()) == ("I look.", [LS])


def test_what_is_malformed_is_skipped_with_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    good = CHAT["Ollama: the whole call in one chunk, finish_reason stop"]
    bad: list[Any] = [3, [1], {"choices": 3}, {"choices": [{"delta": "x", "finish_reason": []}]}]
    answer = chat.Answer()
    events = [event for one in (*bad, *good) for event in fed(answer, json.dumps(one))]
    assert text_and_calls([*events, *answer.finish()]) == ("", [LS])
    assert len(caplog.records) >= 4
    assert json.dumps({"choices": 3}) in caplog.text
