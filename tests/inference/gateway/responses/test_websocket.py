"""Responses over a WebSocket: turns in order, what they continue, and what ends them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openai.types.responses import ResponsesServerEvent
from pydantic import TypeAdapter

from inference.gateway.gateway import Gateway
from inference.gateway.responses.websocket import MAX_WAITING
from inference.protocol.events import Delta, TextLogprob
from inference.protocol.generation import GenerationRequest
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient, AsgiSocket
from tests.inference.gateway.bodies import (
    QUESTION,
    RESPONSES,
    TOOLS,
    breaks,
    calls_a_tool,
    chat,
)
from tests.inference.gateway.fake_neuron import (
    ACCEPTED,
    FakeNeuron,
    ended,
    endless,
    failing,
    paris,
    prepared,
    saying,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("kept")]
EVENT_TYPES: TypeAdapter[Any] = TypeAdapter(ResponsesServerEvent)


def create(**more: Any) -> dict[str, Any]:
    return {"type": "response.create", "model": "tiny", "input": QUESTION, "store": False, **more}


def connect(client: AsgiClient, /, **scope: Any) -> AsgiSocket:
    return AsgiSocket(client.application, RESPONSES, **scope)


def code(events: list[dict[str, Any]]) -> str:
    (event,) = events
    assert (event["type"], event["code"]) == ("error", event["error"]["code"])
    found: str = event["code"]
    return found


async def test_a_chain_needs_nothing_stored(client: AsgiClient, neuron: FakeNeuron) -> None:
    entry = TextLogprob(token="Paris", token_bytes=b"Paris", logprob=-0.5)
    said = Delta(request_id="", text="Paris", logprobs=[entry])
    neuron.script = calls_a_tool
    shown = {"include": ["message.output_text.logprobs"], "top_logprobs": 0}
    async with connect(client) as socket:
        first = (await socket.turn(create(tools=TOOLS)))[-1]["response"]
        neuron.script = saying([ACCEPTED], [said], ended(completion_tokens=1))
        result = {"type": "function_call_output", "call_id": "call_a", "output": "Sunny."}
        chained = create(previous_response_id=first["id"], input=[result], **shown)
        second = (await socket.turn(chained))[-1]["response"]
        assert [one["token"] for one in second["output"][0]["content"][0]["logprobs"]] == ["Paris"]
        await socket.turn(create(previous_response_id=second["id"], input="And now?"))
    assert first["status"] == second["status"] == "completed"
    messages = chat(neuron.frames[-1]).messages
    roles = ["user", "assistant", "tool", "assistant", "user"]
    assert [message.role for message in messages] == roles
    assert messages[1].tool_calls[0].name == "get_weather"
    assert (messages[2].content, messages[3].content) == ("Sunny.", "Paris")


async def test_sockets_share_what_is_stored(client: AsgiClient, neuron: FakeNeuron) -> None:
    async with connect(client) as socket:
        forgotten = (await socket.turn(create()))[-1]["response"]["id"]
        sent = (await socket.turn(create(store=True)))[-1]["response"]
        neuron.script = breaks
        *_, item, broken = await socket.turn(create(store=True))
        assert (item["type"], broken["type"]) == ("response.output_item.done", "response.failed")
        neuron.script = paris
    async with connect(client) as socket:
        missed = await socket.turn(create(previous_response_id=forgotten))
        assert code(missed) == "previous_response_not_found"
        assert missed[0]["status"] == 400
        again = await socket.turn(create(previous_response_id=sent["id"]))
        assert again[-1]["response"]["status"] == "completed"
    stored = (await client.get(f"{RESPONSES}/{sent['id']}")).json
    assert stored["output"] == sent["output"] and sent["output"], "though its last events came late"
    assert (await client.get(f"{RESPONSES}/{forgotten}")).status == 404
    failed = await client.get(f"{RESPONSES}/{broken['response']['id']}")
    assert failed.json["status"] == "failed"


async def test_failed_turns_and_too_many(client: AsgiClient, neuron: FakeNeuron) -> None:
    async with connect(client) as socket:
        first = (await socket.turn(create()))[-1]["response"]["id"]
        # A turn of another chain that fails costs this one nothing.
        assert code(await socket.turn(create(model="huge"))) == "model_not_found"
        orphan = {"type": "function_call_output", "call_id": "call_x", "output": "?"}
        refused = await socket.turn(create(previous_response_id=first, input=[orphan]))
        assert code(refused) == "invalid_value"
        assert refused[0]["param"] == "input[0].call_id"
        stale = await socket.turn(create(previous_response_id=first))
        assert code(stale) == "previous_response_not_found"
    # Who does not wait at all is closed.
    neuron.script = endless
    async with connect(client) as socket:
        for _ in range(MAX_WAITING + 3):
            socket.send_json(create())
        while (message := await socket.message())["type"] == "websocket.send":
            pass
        assert message == {"type": "websocket.close", "code": 1008}


async def test_prompts_and_turns(client: AsgiClient, neuron: FakeNeuron) -> None:
    async with connect(client) as socket:
        neuron.script = prepared
        turn = await socket.turn(create(generate=False, instructions="Be brief."))
        response = turn[-1]["response"]
        neuron.script = paris
        await socket.turn(create(previous_response_id=response["id"], input="Go on."))
    submitted = neuron.frames[0].request  # type: ignore[union-attr]
    assert isinstance(submitted, GenerationRequest) and submitted.sampling.max_tokens == 0
    assert response["status"] == "completed"
    assert [message.content for message in chat(neuron.frames[-1]).messages][-1] == "Go on."
    # Turns wait for one another.
    async with connect(client) as socket:
        for number in range(3):
            socket.send_json(create(metadata={"number": str(number)}))
        turns = [await socket.rest() for _ in range(3)]
    assert [turn[-1]["response"]["metadata"]["number"] for turn in turns] == ["0", "1", "2"]
    events = turns[0]
    assert (events[0]["type"], events[-1]["type"]) == ("response.created", "response.completed")
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    answer = events[-1]["response"]["output"][0]["content"][0]["text"]
    assert answer == "The capital is Paris."
    for event in events:
        EVENT_TYPES.validate_python(event)


@each_case(
    ("body", "expected", "param"),
    [
        ("{", "invalid_json", None),
        ("[]", "invalid_type", None),
        ({"model": "tiny", "input": "Hi"}, "missing_required_parameter", "type"),
        ({"type": "response.steer", "input": "Hi"}, None, "type"),
        (create(stream=False), "unsupported_parameter", "stream"),
        (create(background=True), "unsupported_parameter", "background"),
        (create(colour="red"), None, "colour"),
        (create(), "context_length_exceeded", "input"),  # by the neuron
    ],
)
async def test_what_is_refused(
    client: AsgiClient, neuron: FakeNeuron, body: Any, expected: str | None, param: str | None
) -> None:
    neuron.script = failing
    async with connect(client) as socket:
        events = await socket.turn(body)
    assert code(events) == expected or expected is None
    assert (events[0]["param"], events[0]["status"]) == (param, 400)
    EVENT_TYPES.validate_python(events[0])


async def test_leaving_and_stopping(
    client: AsgiClient, gateway: Gateway, neuron: FakeNeuron
) -> None:
    neuron.script = endless
    async with connect(client) as socket:
        socket.send_json(create())
        while "delta" not in await socket.event():
            pass
    assert await asyncio.wait_for(neuron.cancelled.get(), 60)
    async with connect(client) as socket:
        socket.send_json(create())
        while "delta" not in await socket.event():
            pass
        await gateway.drain(0)
        assert (await socket.rest())[-1]["type"] == "response.failed"
        socket.send_json(create())
        assert code(await socket.rest()) == "shutting_down"
        assert (await socket.message())["code"] == 1001
