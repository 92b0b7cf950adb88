"""OpenAI's Responses through the whole gateway, by its own SDK and by hand, kept in a database."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from django.db import OperationalError

from inference.conversations import selectors, services
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.bodies import (
    QUESTION,
    RESPONSES,
    breaks,
    chat,
    counts,
    events,
    responses_body,
)
from tests.inference.gateway.fake_neuron import FakeNeuron, says

ANSWER = "The capital is Paris."
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("kept")]


async def test_the_sdk_creates_streams_retrieves_and_deletes(sdk: openai.AsyncOpenAI) -> None:
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
        names = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert (names[0], names[-1]) == ("response.created", "response.completed")
    assert (await sdk.responses.retrieve(final.id)).output_text == final.output_text == ANSWER


async def test_counts_with_the_turns_before(sdk: openai.AsyncOpenAI, neuron: FakeNeuron) -> None:
    first = await sdk.responses.create(**responses_body())
    neuron.script = counts
    asked: dict[str, Any] = {"model": "tiny", "input": "Why?", "instructions": "Be brief."}
    count = sdk.responses.input_tokens.count
    counted = await count(**asked, previous_response_id=first.id)
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", 42)
    turns = chat(neuron.frames[-1]).messages
    words = ["Be brief.", QUESTION, first.output_text, "Why?"]
    assert [turn.content for turn in turns] == words
    with pytest.raises(openai.BadRequestError) as refused:
        await count(**asked, previous_response_id="resp_unknown")
    assert refused.value.code == "previous_response_not_found"


async def test_items_can_be_referred_to(client: AsgiClient, neuron: FakeNeuron) -> None:
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


async def test_what_is_not_stored_is_gone(client: AsgiClient, neuron: FakeNeuron) -> None:
    made = await client.post(RESPONSES, responses_body(store=False))
    assert made.json["store"] is False
    assert (await client.get(f"{RESPONSES}/{made.json['id']}")).status == 404
    for previous in (made.json["id"], "resp_of_nobody", "\x00"):
        refused = await client.post(RESPONSES, responses_body(previous_response_id=previous))
        assert (refused.status, refused.error["code"]) == (400, "previous_response_not_found")
        assert refused.error["param"] == "previous_response_id"
    assert len(neuron.frames) == 1


async def test_a_stream_that_breaks_is_reported_and_kept(
    client: AsgiClient, sdk: openai.AsyncOpenAI, neuron: FakeNeuron
) -> None:
    neuron.script = breaks
    with pytest.raises(openai.APIError, match="The engine crashed") as raised:
        async for _ in await sdk.responses.create(**responses_body(stream=True)):
            pass
    assert raised.value.code == "engine_crashed"
    whole = await client.post(RESPONSES, responses_body())
    assert (whole.status, whole.error["code"]) == (503, "engine_crashed")
    seen = events(await client.post(RESPONSES, responses_body(stream=True)))
    assert [event["sequence_number"] for event in seen] == list(range(len(seen)))
    error, failed = seen[-2:]
    assert (error["type"], error["code"]) == ("error", "engine_crashed")
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    stored = (await client.get(f"{RESPONSES}/{failed['response']['id']}")).json
    assert stored == failed["response"]
    refused = await client.post(RESPONSES, responses_body(previous_response_id=stored["id"]))
    assert (refused.status, refused.error["code"]) == (400, "invalid_value")


def raising(*_args: Any, **_named: Any) -> Any:
    raise OperationalError("gone")


@each_case("stream", [True, False])
async def test_what_cannot_be_kept_is_not_called_complete(
    client: AsgiClient, neuron: FakeNeuron, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr(services, "response_save", raising)
    answer = await client.post(RESPONSES, responses_body(stream=stream))
    if not stream:
        assert (answer.status, answer.error["code"]) == (503, "database_unavailable")
        return
    seen = events(answer)
    assert [event["sequence_number"] for event in seen] == list(range(len(seen)))
    assert seen[-2]["code"] == "database_unavailable"
    assert seen[-1]["type"] == "response.failed"
    text = "".join(event["delta"] for event in seen if event["type"].endswith("text.delta"))
    assert text == ANSWER


async def test_the_database_is_away(
    client: AsgiClient, neuron: FakeNeuron, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("response_find", "history_items"):
        monkeypatch.setattr(selectors, name, raising)
    for refused in (
        await client.get(f"{RESPONSES}/resp_1"),
        await client.post(RESPONSES, responses_body(previous_response_id="resp_1")),
        await client.post(f"{RESPONSES}/resp_1/cancel"),
    ):
        assert (refused.status, refused.error["code"]) == (503, "database_unavailable")
    assert (await client.post(RESPONSES, responses_body(store=False))).status == 200


async def test_the_sdk_compacts(
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
