"""OpenAI's Responses through the whole gateway, by its own SDK and by hand, kept in a database, and
over a WebSocket: turns in order, what they continue, and what ends them."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

import openai
import pytest
from django.db import OperationalError
from openai.types.responses import ResponsesServerEvent
from pydantic import TypeAdapter

from inference.conversations import services
from inference.gateway.consumers.responses_websocket import MAX_WAITING
from inference.gateway.gateway import Gateway
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
    counts,
    responses_body,
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
    says,
)

ANSWER = "The capital is Paris."
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("kept")]


async def test_creates_counts_and_deletes(sdk: openai.AsyncOpenAI, neuron: FakeNeuron) -> None:
    made = await sdk.responses.create(**responses_body(metadata={"topic": "capitals"}))
    assert made.output_text == ANSWER
    assert (made.status, made.model, made.metadata) == ("completed", "tiny", {"topic": "capitals"})
    assert made.usage is not None and made.usage.input_tokens_details.cached_tokens == 2
    assert (await sdk.responses.retrieve(made.id)).to_dict() == made.to_dict()
    await sdk.responses.delete(made.id)
    for ask_again in (sdk.responses.retrieve, sdk.responses.delete, sdk.responses.cancel):
        with pytest.raises(openai.NotFoundError) as refused:
            await ask_again(made.id)
        assert refused.value.code == "response_not_found"
    async with sdk.responses.stream(**responses_body()) as stream:
        first = await stream.get_final_response()
    assert (await sdk.responses.retrieve(first.id)).output_text == first.output_text == ANSWER
    # Counts with the turns before.
    neuron.script = counts
    asked: dict[str, Any] = {"model": "tiny", "input": "Why?", "instructions": "Be brief."}
    count = sdk.responses.input_tokens.count
    assert (await count(**asked, previous_response_id=first.id)).input_tokens == 42
    turns = [turn.content for turn in chat(neuron.frames[-1]).messages]
    assert turns == ["Be brief.", QUESTION, ANSWER, "Why?"]
    with pytest.raises(openai.BadRequestError) as refused:
        await count(**asked, previous_response_id="resp_unknown")
    assert refused.value.code == "previous_response_not_found"


async def test_what_can_be_referred_to(client: AsgiClient, neuron: FakeNeuron) -> None:
    first = (await client.post(RESPONSES, responses_body())).json
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    body = responses_body(input=[reference, {"role": "user", "content": "Why?"}])
    answer = await client.post(RESPONSES, body)
    assert answer.status == 200
    turns = chat(neuron.frames[1]).messages
    assert [turn.content for turn in turns] == ["The capital is Paris.", "Why?"]
    listed = (await client.get(f"{RESPONSES}/{answer.json['id']}/input_items")).json
    assert listed["data"][-1]["id"] == reference["id"]
    wrong = responses_body(input=[{"type": "item_reference", "id": "msg_of_nobody"}])
    refused = await client.post(RESPONSES, wrong)
    assert (refused.status, refused.error["param"]) == (400, "input[0]")
    # What is not stored is gone.
    made = await client.post(RESPONSES, responses_body(store=False))
    assert made.json["store"] is False
    assert (await client.get(f"{RESPONSES}/{made.json['id']}")).status == 404
    for previous in (made.json["id"], "resp_of_nobody", "\x00"):
        refused = await client.post(RESPONSES, responses_body(previous_response_id=previous))
        assert (refused.status, refused.error["code"]) == (400, "previous_response_not_found")
        assert refused.error["param"] == "previous_response_id"
    assert len(neuron.frames) == 3


async def test_the_database_is_away(
    client: AsgiClient, neuron: FakeNeuron, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("response_find", "history_items", "response_save"):
        monkeypatch.setattr(services, name, Mock(side_effect=OperationalError("gone")))
    for refused in (
        await client.get(f"{RESPONSES}/resp_1"),
        await client.post(RESPONSES, responses_body(previous_response_id="resp_1")),
        await client.post(f"{RESPONSES}/resp_1/cancel"),
        await client.post(RESPONSES, responses_body()),
    ):
        assert (refused.status, refused.error["code"]) == (503, "database_unavailable")
    assert (await client.post(RESPONSES, responses_body(store=False))).status == 200
    # What cannot be kept is not called complete.
    seen = (await client.post(RESPONSES, responses_body(stream=True))).chunks
    assert [event["sequence_number"] for event in seen] == list(range(len(seen)))
    assert seen[-2]["code"] == "database_unavailable"
    assert seen[-1]["type"] == "response.failed"
    text = "".join(event["delta"] for event in seen if event["type"].endswith("text.delta"))
    assert text == ANSWER


async def test_compacted_and_broken(
    sdk: openai.AsyncOpenAI, client: AsgiClient, neuron: FakeNeuron
) -> None:
    first = await sdk.responses.create(**responses_body())
    compacted = await sdk.responses.compact(model="tiny", previous_response_id=first.id)
    assert [item.type for item in compacted.output] == ["message", "compaction"]
    asked = chat(neuron.frames[-1]).messages
    assert [message.role for message in asked] == ["user", "assistant", "user"]
    # The SDK has no type for a user's message in a compacted output.
    items: Any = [item.to_dict(warnings=False) for item in compacted.output]
    await sdk.responses.create(
        **responses_body(input=[*items, {"role": "user", "content": "Go on."}])
    )
    assert ANSWER in (chat(neuron.frames[-1]).messages[1].content or "")
    for script, status in (
        (says("The cap", reason="context"), "cut_off"),
        (says("The cap", reason="length"), "cut_off"),
        (says(" "), "missing"),
        (says("Paris."), "complete"),
    ):
        neuron.script = script
        answer = await client.post(f"{RESPONSES}/compact", responses_body())
        assert (answer.status, answer.json["summary"]["status"]) == (200, status)
        assert answer.json["output"][-1]["type"] == "compaction"
    # Broken.
    neuron.script = breaks
    with pytest.raises(openai.APIError, match="The engine crashed"):
        _ = [one async for one in await sdk.responses.create(**responses_body(stream=True))]
    whole = await client.post(RESPONSES, responses_body())
    assert (whole.status, whole.error["code"]) == (503, "engine_crashed")
    seen = (await client.post(RESPONSES, responses_body(stream=True))).chunks
    assert [event["sequence_number"] for event in seen] == list(range(len(seen)))
    error, failed = seen[-2:]
    assert (error["type"], error["code"]) == ("error", "engine_crashed")
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    stored = (await client.get(f"{RESPONSES}/{failed['response']['id']}")).json
    assert stored == failed["response"]
    refused = await client.post(RESPONSES, responses_body(previous_response_id=stored["id"]))
    assert (refused.status, refused.error["code"]) == (400, "invalid_value")


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


async def test_chains_and_sockets(client: AsgiClient, neuron: FakeNeuron) -> None:
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
    # Sockets share what is stored.
    async with connect(client) as socket:
        forgotten = (await socket.turn(create()))[-1]["response"]["id"]
        sent = (await socket.turn(create(store=True)))[-1]["response"]
        neuron.script = breaks
        *_, item, broken = await socket.turn(create(store=True))
        assert (item["type"], broken["type"]) == ("response.output_item.done", "response.failed")
        neuron.script = paris
    async with connect(client) as socket:
        missed = await socket.turn(create(previous_response_id=forgotten))
        assert (code(missed), missed[0]["status"]) == ("previous_response_not_found", 400)
        again = await socket.turn(create(previous_response_id=sent["id"]))
        assert again[-1]["response"]["status"] == "completed"
    for made, status in (
        (forgotten, 404),
        (sent["id"], "completed"),
        (broken["response"]["id"], "failed"),
    ):
        stored = await client.get(f"{RESPONSES}/{made}")
        assert status in (stored.status, stored.json.get("status"))
        assert made != sent["id"] or stored.json["output"] == sent["output"]


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


async def test_leaving_and_stops(client: AsgiClient, gateway: Gateway, neuron: FakeNeuron) -> None:
    neuron.script = endless
    for stops in (False, True):
        async with connect(client) as socket:
            socket.send_json(create())
            while "delta" not in await socket.event():
                pass
            if stops:
                await gateway.drain(0)
                assert (await socket.rest())[-1]["type"] == "response.failed"
                socket.send_json(create())
                assert code(await socket.rest()) == "shutting_down"
                assert (await socket.message())["code"] == 1001
        assert await asyncio.wait_for(neuron.cancelled.get(), 60)
