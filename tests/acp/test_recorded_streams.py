"""Streams in the shapes of other servers, after their public documentation: their events."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

from helexa_acp import wire
from helexa_acp.errors import EndpointError
from helexa_acp.history import AssistantTurn, Thought, Usage
from helexa_acp.wire import chat, messages, responses
from helexa_acp.wire.endpoints import fed
from tests.cases import each_case

Json = dict[str, Any]
LS = wire.CallMade("call_1", "bash", '{"command": "ls"}')
WRITTEN = LS.arguments
HALVES = ('{"command"', ': "ls"}')


def chunk(finish: str | None = None, **delta: Any) -> Json:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def call(*, id: str | None = None, index: int | None = 0, **function: str) -> list[Json]:
    return [{"index": index, "id": id, "type": "function", "function": function}]


def begun(arguments: str = "", **more: Any) -> list[Json]:
    return call(id="call_1", name="bash", arguments=arguments, **more)


END = chunk("tool_calls")
CHAT: dict[str, list[Json]] = {
    "OpenAI: arguments in pieces, usage in a chunk of its own": [
        chunk(role="assistant", content=None),
        chunk(tool_calls=begun()),
        *(chunk(tool_calls=call(arguments=piece)) for piece in HALVES),
        END,
        {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}},
    ],
    "LM Studio: the role with every piece": [
        chunk(role="assistant", tool_calls=begun()),
        *(chunk(role="assistant", tool_calls=call(arguments=piece)) for piece in HALVES),
        END,
    ],
    "vLLM: the name first, reasoning_content": [
        chunk(role="assistant", content="", reasoning_content="Look."),
        chunk(tool_calls=call(id="call_1", name="bash")),
        chunk(tool_calls=call(arguments=WRITTEN)),
        chunk("tool_calls", content=""),
    ],
    "Ollama: the whole call in one chunk, finish_reason stop": [
        chunk(role="assistant", content="", tool_calls=begun(WRITTEN)),
        chunk("stop", role="assistant", content=""),
    ],
    "OpenRouter: reasoning beside the call, no index": [
        chunk(role="assistant", content="", reasoning="Look."),
        chunk(tool_calls=begun(WRITTEN, index=None)),
        END,
    ],
    "a proxy: id and name with every piece": [
        *(chunk(tool_calls=begun(piece)) for piece in HALVES),
        END,
    ],
    "vLLM before 0.8: another id with every piece": [
        chunk(tool_calls=begun()),
        chunk(tool_calls=call(id="call_8", arguments=WRITTEN)),
        END,
    ],
}


def block(index: int, begin: Json, *deltas: Json) -> list[Json]:
    return [
        {"type": "content_block_start", "index": index, "content_block": begin},
        *({"type": "content_block_delta", "index": index, "delta": one} for one in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def text_delta(text: str) -> Json:
    return {"type": "text_delta", "text": text}


def tool_use(**arguments: str) -> Json:
    return {"type": "tool_use", "id": "call_1", "name": "bash", "input": arguments}


def piece_of_input(text: str) -> Json:
    return {"type": "input_json_delta", "partial_json": text}


START = {"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1}}}
EMPTY = {"type": "text", "text": ""}
STOP = [
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 3}},
    {"type": "message_stop"},
]
MESSAGES: dict[str, list[Json]] = {
    "Anthropic: text and input in deltas": [
        *(START, {"type": "ping"}, *block(0, EMPTY, text_delta("I look."))),
        *block(1, tool_use(), *map(piece_of_input, HALVES)),
        *STOP,
    ],
    "a proxy: text and input whole in content_block_start": [
        *(START, *block(0, EMPTY | {"text": "I look."}), *block(1, tool_use(command="ls")), *STOP),
    ],
    "LM Studio, Ollama: input whole in one delta": [
        {"type": "message_start", "message": {"usage": {}}},
        *block(0, EMPTY, text_delta("I look."), text_delta("")),
        *block(1, tool_use(), piece_of_input(WRITTEN)),
        *STOP,
    ],
}
WHOLE = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "bash"}
WHOLE["arguments"] = WRITTEN
BEGUN = {"type": "response.output_item.added", "item": WHOLE | {"arguments": ""}}
PIECES = [
    {"type": "response.function_call_arguments.delta", "item_id": "fc_1", "delta": piece}
    for piece in HALVES
]
TEXT = {"type": "response.output_text.delta", "item_id": "msg_1", "delta": "I look."}
MESSAGE = {"type": "message", "content": [{"type": "output_text", "text": "I look."}]}


def completed(*output: Json, **more: Any) -> Json:
    response = {"output": list(output), "usage": {"input_tokens": 9, "output_tokens": 3}} | more
    return {"type": "response.completed", "response": response}


RESPONSES: dict[str, list[Json]] = {
    "OpenAI: every event": [
        *(TEXT, BEGUN, *PIECES, {"type": "response.output_item.done", "item": WHOLE}),
        completed(MESSAGE, WHOLE),
    ],
    "vLLM, LM Studio: no output_item.done": [TEXT, BEGUN, *PIECES, completed(MESSAGE, WHOLE)],
    "pieces, and an empty output at the end": [TEXT, BEGUN, *PIECES, completed()],
    "no id at the end": [TEXT, BEGUN, *PIECES, completed(WHOLE | {"id": None})],
    "everything in response.completed": [completed(MESSAGE, WHOLE)],
}


def events_of(dialect: ModuleType, events: Sequence[Any]) -> list[wire.WireEvent]:
    answer = dialect.Answer()
    return [one for event in events for one in fed(answer, json.dumps(event))] + answer.finish()


def text_and_calls(events: Sequence[wire.WireEvent]) -> tuple[str, list[wire.CallMade]]:
    texts = [event.text for event in events if isinstance(event, wire.TextDelta)]
    return "".join(texts), [event for event in events if isinstance(event, wire.CallMade)]


STREAMS = [
    *((name, chat, events, "") for name, events in CHAT.items()),
    *((name, messages, events, "I look.") for name, events in MESSAGES.items()),
    *((name, responses, events, "I look.") for name, events in RESPONSES.items()),
]


@each_case(("name", "dialect", "stream", "text"), STREAMS, ids=[name for name, *_ in STREAMS])
def test_the_same_call(name: str, dialect: ModuleType, stream: list[Json], text: str) -> None:
    events = events_of(dialect, stream)
    assert text_and_calls(events) == (text, [LS])
    if "easoning" in name:
        assert wire.ThoughtDelta("Look.") in events
    usage = Usage(9, 3) if "9" in json.dumps(stream) else Usage(0, 3 if dialect is messages else 0)
    assert events[-1] == wire.Finished("stop", usage)


@each_case("ids", [("call_0", "call_1"), ("", "")])
@each_case("index", [0, None])
def test_two_calls_of_one_index_are_two(index: int | None, ids: tuple[str, str]) -> None:
    """Ollama and Gemini give every call the index 0, in chunks of their own or in one."""
    written = (WRITTEN, '{"command": "pwd"}')
    deltas = [
        call(id=call_id, index=index, name="bash", arguments=arguments)
        for call_id, arguments in zip(ids, written, strict=True)
    ]
    calls = [
        wire.CallMade(call_id, "bash", text) for call_id, text in zip(ids, written, strict=True)
    ]
    apart = [chunk(tool_calls=one) for one in deltas]
    for chunks in (apart, [chunk(tool_calls=[*deltas[0], *deltas[1]])]):
        assert text_and_calls(events_of(chat, [*chunks, chunk("stop")])) == ("", calls)


REASONING = {"type": "reasoning", "encrypted_content": "x", "status": None, "summary": []}
SEALED = {"type": "reasoning", "encrypted_content": "x", "summary": []}
REDACTED = {"type": "redacted_thinking", "data": "x"}
ITEM_DONE: Json = {"type": "response.output_item.done", "item": REASONING}
ERROR, FAILED = {"type": "error"}, {"type": "response.failed"}
CUT_OFF = {"reason": "max_output_tokens"}


@each_case(
    ("dialect", "stream", "sealed"),
    [
        (responses, [ITEM_DONE, completed()], SEALED),
        (messages, [START, *block(0, REDACTED), *STOP], REDACTED),
    ],
)
def test_sealed_thoughts_go_back(dialect: ModuleType, stream: list[Json], sealed: Json) -> None:
    assert wire.ThoughtSealed(sealed) in events_of(dialect, stream)
    turn = AssistantTurn(text="Hm.", thoughts=(Thought("", sealed), Thought("", {"type": "else"})))
    request = wire.ModelRequest(model="m", system="s", turns=(turn,))
    sent = json.dumps(dialect.request_body(request))
    assert sent.count(json.dumps(sealed)) == 1
    assert "else" not in sent


@each_case(
    ("dialect", "event", "message", "code"),
    [
        (chat, {"error": {"message": "busy", "code": "overloaded"}}, "busy", "overloaded"),
        (chat, {"error": "busy"}, "busy", None),
        (messages, ERROR | {"error": {"type": "api", "message": "x"}}, "x", "api"),
        (messages, {"error": {"message": "x", "details": {"code": "too_long"}}}, "x", "too_long"),
        (responses, ERROR | {"message": "x", "code": "y"}, "x", "y"),
        (responses, FAILED | {"response": {"error": {"message": "x"}}}, "x", None),
        (responses, FAILED | {"response": {}}, "the response failed", None),
    ],
)
def test_stream_errors(dialect: ModuleType, event: Json, message: str, code: str | None) -> None:
    with pytest.raises(EndpointError, match=message) as caught:
        fed(dialect.Answer(), json.dumps(event))
    assert (caught.value.status, caught.value.code) == (400, code)


def test_how_a_stream_ends() -> None:
    for dialect, stream, reason in (
        (chat, [chunk(refusal="No."), chunk("stop")], "refusal"),
        (responses, [{"type": "response.refusal.delta", "delta": "No."}, completed()], "refusal"),
        (responses, [TEXT, completed(incomplete_details=CUT_OFF)], "length"),
        (messages, [STOP[0] | {"delta": {"stop_reason": "refusal"}}, STOP[1]], "refusal"),
    ):
        (*_, end) = events_of(dialect, stream)
        assert isinstance(end, wire.Finished) and end.reason == reason


def test_what_is_malformed_is_skipped_with_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    good = CHAT["Ollama: the whole call in one chunk, finish_reason stop"]
    bad: list[Any] = [3, [1], {"choices": 3}, {"choices": [{"delta": "x", "finish_reason": []}]}]
    assert text_and_calls(events_of(chat, [*bad, *good])) == ("", [LS])
    assert len(caplog.records) == 4
    assert json.dumps({"choices": 3}) in caplog.text
    assert fed(chat.Answer(), "{") == fed(chat.Answer(), " ") == []
    assert len(caplog.records) == 5
