"""OpenAI's Responses through the whole gateway, by its own SDK and by hand, kept in a database."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import openai
import pytest
import pytest_asyncio
import uvicorn
from django.db import OperationalError

from helexa_site.routing import build_application
from inference.conversations import selectors, services
from inference.conversations.models import StoredResponse
from inference.gateway import background, database, generation, response_store
from inference.gateway.database import DatabaseThreads
from inference.gateway.gateway import Gateway
from inference.protocol.events import (
    Accepted,
    ChoiceFinished,
    Delta,
    Event,
    Failed,
    Failure,
    Finished,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from inference.protocol.generation import ChatInput, ChatMessage, Submit, ToolCall
from tests.inference.gateway.asgi_client import AsgiClient, Exchange
from tests.inference.gateway.conftest import not_django
from tests.inference.gateway.fake_neuron import FakeNeuron, endless, silent

pytestmark = pytest.mark.django_db(transaction=True)

RESPONSES = "/v1/responses"
QUESTION = "What is the capital of France?"
TOOLS: Any = [
    {
        "type": "function",
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        "strict": False,
    }
]


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> DatabaseThreads:
    """The one thread through which gateway and test use the database: that of the tests is in
    memory and refuses two at once instead of waiting."""
    monkeypatch.setattr(database, "NUM_THREADS", 1)
    threads = DatabaseThreads("test")
    monkeypatch.setattr(response_store, "DatabaseThreads", lambda _name: threads)
    return threads


@pytest_asyncio.fixture
async def sdk(gateway: Gateway, neuron: FakeNeuron) -> AsyncIterator[openai.AsyncOpenAI]:
    """The SDK, and a server in this process for it to talk to."""
    application = build_application(gateway, django_app=not_django)
    config = uvicorn.Config(application, port=0, lifespan="off", log_level="warning")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    async with openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{port}/v1", api_key="x", max_retries=0
    ) as client:
        yield client
    server.should_exit = True
    await serving


def ask(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "input": QUESTION, **more}


async def calls_a_tool(submit: Submit) -> AsyncIterator[list[Event]]:
    rid = submit.request_id
    yield [Accepted(request_id=rid, prompt_tokens=20)]
    yield [ReasoningDelta(request_id=rid, text="It is", opens="<think>")]
    yield [ReasoningDelta(request_id=rid, text=" Paris.", closes="</think>")]
    yield [ToolCallStarted(request_id=rid, call_id="call_a", name="get_weather")]
    yield [ToolCallDelta(request_id=rid, arguments='{"city": "Paris"}')]
    usage = Usage(prompt_tokens=20, completion_tokens=9, cached_tokens=16, reasoning_tokens=3)
    yield [
        ChoiceFinished(request_id=rid, reason="tool_calls"),
        Finished(request_id=rid, usage=usage),
    ]


async def breaks(submit: Submit) -> AsyncIterator[list[Event]]:
    yield [Accepted(request_id=submit.request_id, prompt_tokens=7)]
    yield [Delta(request_id=submit.request_id, text="The")]
    failure = Failure(code="engine_crashed", message="The engine crashed.")
    yield [Failed(request_id=submit.request_id, failure=failure)]


def gated(gate: asyncio.Event) -> Callable[[Submit], AsyncIterator[list[Event]]]:
    async def script(submit: Submit) -> AsyncIterator[list[Event]]:
        rid = submit.request_id
        yield [Accepted(request_id=rid, prompt_tokens=7), Delta(request_id=rid, text="Pa")]
        await gate.wait()
        usage = Usage(prompt_tokens=7, completion_tokens=2)
        yield [
            Delta(request_id=rid, text="ris"),
            ChoiceFinished(request_id=rid, reason="stop"),
            Finished(request_id=rid, usage=usage),
        ]

    return script


def events(answer: Exchange) -> list[dict[str, Any]]:
    frames = answer.body.decode().split("\n\n")[:-1]
    data = [frame.partition("data: ")[2] for frame in frames if frame[0] != ":"]
    return [json.loads(item) for item in data]


def chat(frame: Any) -> ChatInput:
    assert isinstance(frame, Submit) and isinstance(frame.request.input, ChatInput)
    return frame.request.input


async def until_status(kept: DatabaseThreads, response_id: str, status: str) -> None:
    async with asyncio.timeout(10):
        while await kept.query(lambda: stored_status(response_id)) != status:
            await asyncio.sleep(0.02)


def stored_status(response_id: str) -> str | None:
    record = selectors.response_find(response_id)
    return None if record is None else record.status


# --- with the client


async def test_the_sdk_creates_retrieves_and_deletes(sdk: openai.AsyncOpenAI) -> None:
    made = await sdk.responses.create(**ask(metadata={"topic": "capitals"}))
    assert made.output_text == "The capital is Paris."
    assert (made.status, made.model, made.metadata) == ("completed", "tiny", {"topic": "capitals"})
    assert made.usage is not None and made.usage.input_tokens_details.cached_tokens == 2
    read = await sdk.responses.retrieve(made.id)
    assert read.to_dict() == made.to_dict()
    await sdk.responses.delete(made.id)
    for ask_again in (sdk.responses.retrieve, sdk.responses.delete, sdk.responses.cancel):
        with pytest.raises(openai.NotFoundError) as refused:
            await ask_again(made.id)
        assert refused.value.code == "response_not_found"


async def test_the_sdk_streams(sdk: openai.AsyncOpenAI) -> None:
    async with sdk.responses.stream(**ask()) as stream:
        names = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert final.output_text == "The capital is Paris."
    assert names[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert names[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert (await sdk.responses.retrieve(final.id)).output_text == final.output_text


async def test_a_turn_with_a_tool(sdk: openai.AsyncOpenAI, neuron: FakeNeuron) -> None:
    paris, neuron.script = neuron.script, calls_a_tool
    first = await sdk.responses.create(**ask(tools=TOOLS, instructions="Be brief."))
    thought, call = first.output
    assert thought.type == "reasoning" and thought.content[0].text == "It is Paris."
    assert call.type == "function_call" and json.loads(call.arguments) == {"city": "Paris"}
    assert first.usage.output_tokens_details.reasoning_tokens == 3
    neuron.script = paris
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "21"}
    second = await sdk.responses.create(
        model="tiny", input=[result], tools=TOOLS, previous_response_id=first.id
    )
    by_hand = await sdk.responses.create(
        model="tiny",
        input=[{"role": "user", "content": QUESTION}, *first.output, result],
        tools=TOOLS,
        store=False,
    )
    assert second.output_text == by_hand.output_text
    turns = [
        ChatMessage(role="user", content=QUESTION),
        ChatMessage(
            role="assistant",
            reasoning="It is Paris.",
            tool_calls=[ToolCall(id="call_a", name="get_weather", arguments='{"city": "Paris"}')],
        ),
        ChatMessage(role="tool", content="21", tool_call_id="call_a"),
    ]
    asked, continued, sent_whole = map(chat, neuron.frames)
    assert asked.messages[0] == ChatMessage(role="system", content="Be brief.")
    assert continued.messages == sent_whole.messages == turns
    assert second.previous_response_id == first.id


async def test_items_can_be_referred_to(client: AsgiClient, neuron: FakeNeuron) -> None:
    first = (await client.post(RESPONSES, ask())).json
    item = first["output"][0]["id"]
    answer = await client.post(
        RESPONSES,
        ask(input=[{"type": "item_reference", "id": item}, {"role": "user", "content": "Why?"}]),
    )
    assert answer.status == 200
    assert [turn.content for turn in chat(neuron.frames[1]).messages] == [
        "The capital is Paris.",
        "Why?",
    ]
    listed = (await client.get(f"{RESPONSES}/{answer.json['id']}/input_items")).json
    assert listed["data"][-1]["id"] == item
    wrong = ask(input=[{"type": "item_reference", "id": "msg_of_nobody"}])
    refused = await client.post(RESPONSES, wrong)
    assert (refused.status, refused.error["param"]) == (400, "input[0]")


async def test_what_is_not_stored_is_gone(client: AsgiClient, neuron: FakeNeuron) -> None:
    made = await client.post(RESPONSES, ask(store=False))
    assert made.json["store"] is False
    assert (await client.get(f"{RESPONSES}/{made.json['id']}")).status == 404
    for previous in (made.json["id"], "resp_of_nobody", "\x00"):
        refused = await client.post(RESPONSES, ask(previous_response_id=previous))
        assert (refused.status, refused.error["code"]) == (400, "previous_response_not_found")
        assert refused.error["param"] == "previous_response_id"
    assert len(neuron.frames) == 1


async def test_input_items_come_in_pages(sdk: openai.AsyncOpenAI) -> None:
    turns: Any = [{"role": "user", "content": str(number)} for number in range(25)]
    made = await sdk.responses.create(model="tiny", input=turns)
    page = await sdk.responses.input_items.list(made.id)
    assert len(page.data) == 20 and page.has_more
    texts = [item.content[0].text async for item in page]  # type: ignore[union-attr]
    assert texts == [str(number) for number in reversed(range(25))]
    oldest = await sdk.responses.input_items.list(made.id, order="asc", limit=2)
    assert [item.id for item in oldest.data] == [oldest.first_id, oldest.last_id]
    after = await sdk.responses.input_items.list(made.id, order="asc", after=oldest.last_id)
    assert after.data[0].content[0].text == "2"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("path", "query", "param"),
    [
        ("/input_items", "limit=0", "limit"),
        ("/input_items", "limit=101", "limit"),
        ("/input_items", "limit=%D9%A1", "limit"),
        ("/input_items", "order=up", "order"),
        ("/input_items", "after=msg_1", "after"),
        ("/input_items", "before=msg_1", "before"),
        ("/input_items", "include[]=everything", "include"),
        ("", "stream=true", "stream"),
        ("", "starting_after=3", "starting_after"),
        ("", "verbose=1", "verbose"),
    ],
)
async def test_queries_that_are_refused(
    client: AsgiClient, neuron: FakeNeuron, path: str, query: str, param: str
) -> None:
    made = (await client.post(RESPONSES, ask())).json["id"]
    refused = await client.get(f"{RESPONSES}/{made}{path}", query=query)
    assert (refused.status, refused.error["param"]) == (400, param)
    fine = "include[]=reasoning.encrypted_content"
    assert (await client.get(f"{RESPONSES}/{made}{path}", query=fine)).status == 200


async def test_methods(client: AsgiClient, neuron: FakeNeuron) -> None:
    for method, path, allowed in (
        ("GET", RESPONSES, "POST"),
        ("POST", f"{RESPONSES}/resp_1", "GET, DELETE"),
        ("GET", f"{RESPONSES}/resp_1/cancel", "POST"),
        ("DELETE", f"{RESPONSES}/resp_1/input_items", "GET"),
    ):
        refused = await client.open(method, path).finish()
        assert (refused.status, refused.headers["allow"]) == (405, allowed)
    assert (await client.get(f"{RESPONSES}/resp_1", peer="203.0.113.9")).status == 401


async def test_a_stream_that_breaks_is_told_and_kept(
    client: AsgiClient, neuron: FakeNeuron
) -> None:
    neuron.script = breaks
    seen = events(await client.post(RESPONSES, ask(stream=True)))
    assert [event["sequence_number"] for event in seen] == list(range(len(seen)))
    error, failed = seen[-2:]
    assert (error["type"], error["code"]) == ("error", "engine_crashed")
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    stored = (await client.get(f"{RESPONSES}/{failed['response']['id']}")).json
    assert stored == failed["response"]
    refused = await client.post(RESPONSES, ask(previous_response_id=stored["id"]))
    assert (refused.status, refused.error["code"]) == (400, "invalid_value")


async def test_the_sdk_raises_what_breaks(sdk: openai.AsyncOpenAI, neuron: FakeNeuron) -> None:
    neuron.script = breaks
    with pytest.raises(openai.APIError, match="The engine crashed") as raised:
        async for _ in await sdk.responses.create(**ask(stream=True)):
            pass
    assert raised.value.code == "engine_crashed"


async def test_a_body_that_breaks_is_a_refusal(client: AsgiClient, neuron: FakeNeuron) -> None:
    neuron.script = breaks
    refused = await client.post(RESPONSES, ask())
    assert (refused.status, refused.error["code"]) == (503, "engine_crashed")


async def test_a_stream_that_was_opened_by_waiting(
    client: AsgiClient, neuron: FakeNeuron, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "STREAM_GRACE_S", 0.05)
    neuron.script = silent
    exchange = client.open("POST", RESPONSES, ask(stream=True))
    await exchange.until(b": waiting")
    submit = await neuron.submitted.get()
    failure = Failure(code="queue_timeout", message="It waited too long.")
    await neuron.send(submit.gateway_id, [Failed(request_id=submit.request_id, failure=failure)])
    (event,) = events(await exchange.finish())
    assert (event["type"], event["code"], event["sequence_number"]) == ("error", "queue_timeout", 0)


def raising(*_args: Any, **_named: Any) -> Any:
    raise OperationalError("gone")


@pytest.mark.parametrize("stream", [True, False])
async def test_what_cannot_be_kept_is_not_called_complete(
    client: AsgiClient, neuron: FakeNeuron, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr(services, "response_save", raising)
    answer = await client.post(RESPONSES, ask(stream=stream))
    if not stream:
        assert (answer.status, answer.error["code"]) == (503, "database_unavailable")
        return
    seen = events(answer)
    assert [event["sequence_number"] for event in seen] == list(range(len(seen)))
    assert seen[-2]["code"] == "database_unavailable"
    assert seen[-1]["type"] == "response.failed"
    text = "".join(event["delta"] for event in seen if event["type"].endswith("text.delta"))
    assert text == "The capital is Paris."


async def test_the_database_is_away(
    client: AsgiClient, neuron: FakeNeuron, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("response_find", "history_items"):
        monkeypatch.setattr(selectors, name, raising)
    for refused in (
        await client.get(f"{RESPONSES}/resp_1"),
        await client.post(RESPONSES, ask(previous_response_id="resp_1")),
        await client.post(f"{RESPONSES}/resp_1/cancel"),
    ):
        assert (refused.status, refused.error["code"]) == (503, "database_unavailable")
    assert (await client.post(RESPONSES, ask(store=False))).status == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_cancels_and_keeps_nothing(
    client: AsgiClient, neuron: FakeNeuron, stream: bool, kept: DatabaseThreads
) -> None:
    neuron.script = endless
    exchange = client.open("POST", RESPONSES, ask(stream=stream))
    submit = await neuron.submitted.get()
    if stream:
        await exchange.until(b"on and")
    exchange.leave()
    assert await asyncio.wait_for(neuron.cancelled.get(), 10) == submit.request_id
    await exchange.finish()
    assert await kept.query(StoredResponse.objects.count) == 0


# --- without the client


async def test_the_sdk_works_in_the_background(
    sdk: openai.AsyncOpenAI, neuron: FakeNeuron, kept: DatabaseThreads
) -> None:
    gate = asyncio.Event()
    neuron.script = gated(gate)
    made = await sdk.responses.create(**ask(background=True))
    assert (made.status, made.output, made.background) == ("queued", [], True)
    await until_status(kept, made.id, "in_progress")
    with pytest.raises(openai.BadRequestError):
        await sdk.responses.create(**ask(previous_response_id=made.id))
    gate.set()
    await until_status(kept, made.id, "completed")
    done = await sdk.responses.retrieve(made.id)
    assert done.output_text == "Paris" and done.usage is not None
    again = await sdk.responses.create(**ask(previous_response_id=made.id))
    assert again.status == "completed"
    assert (await sdk.responses.cancel(made.id)).status == "completed"
    with pytest.raises(openai.BadRequestError):
        await sdk.responses.cancel(again.id)


async def test_a_background_stream_survives_its_client(
    client: AsgiClient, neuron: FakeNeuron, kept: DatabaseThreads
) -> None:
    gate = asyncio.Event()
    neuron.script = gated(gate)
    exchange = client.open("POST", RESPONSES, ask(background=True, stream=True))
    await exchange.until(b'"delta":"Pa"')
    names = [event["type"] for event in events(exchange)]
    assert names[:3] == ["response.created", "response.queued", "response.in_progress"]
    response_id = events(exchange)[0]["response"]["id"]
    exchange.leave()
    await exchange.finish()
    gate.set()
    await until_status(kept, response_id, "completed")
    stored = (await client.get(f"{RESPONSES}/{response_id}")).json
    assert stored["output"][0]["content"][0]["text"] == "Paris"
    assert neuron.cancelled.empty()


async def test_a_background_stream_that_is_watched_to_its_end(
    sdk: openai.AsyncOpenAI, neuron: FakeNeuron
) -> None:
    stream = await sdk.responses.create(**ask(background=True, stream=True))
    seen = [event async for event in stream]
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    last: Any = seen[-1]
    assert (last.type, last.response.output_text) == ("response.completed", "The capital is Paris.")
    assert (await sdk.responses.retrieve(last.response.id)).to_dict() == last.response.to_dict()


async def test_cancelling_in_the_background(
    sdk: openai.AsyncOpenAI, neuron: FakeNeuron, gateway: Gateway
) -> None:
    neuron.script = endless
    made = await sdk.responses.create(**ask(background=True))
    submit = await neuron.submitted.get()
    assert (await sdk.responses.cancel(made.id)).status == "cancelled"
    assert await asyncio.wait_for(neuron.cancelled.get(), 10) == submit.request_id
    assert (await sdk.responses.cancel(made.id)).status == "cancelled"
    assert len(gateway.streams) == 0


async def test_who_watches_is_told_of_the_cancelling(
    client: AsgiClient, neuron: FakeNeuron
) -> None:
    neuron.script = endless
    exchange = client.open("POST", RESPONSES, ask(background=True, stream=True))
    await exchange.until(b"on and")
    response_id = events(exchange)[0]["response"]["id"]
    await client.post(f"{RESPONSES}/{response_id}/cancel")
    seen = events(await exchange.finish())
    assert (seen[-1]["type"], seen[-1]["code"]) == ("error", "cancelled")
    assert [event["sequence_number"] for event in seen] == list(range(len(seen)))


@pytest.mark.parametrize("end", [services.response_cancel, services.response_delete])
async def test_what_another_gateway_ends_stops_here(
    client: AsgiClient,
    neuron: FakeNeuron,
    monkeypatch: pytest.MonkeyPatch,
    end: Any,
    kept: DatabaseThreads,
) -> None:
    monkeypatch.setattr(background, "WATCH_INTERVAL_S", 0.02)
    neuron.script = endless
    made = (await client.post(RESPONSES, ask(background=True))).json["id"]
    submit = await neuron.submitted.get()
    await until_status(kept, made, "in_progress")
    await kept.query(lambda: end(response_id=made))
    assert await asyncio.wait_for(neuron.cancelled.get(), 10) == submit.request_id


async def test_deleting_ends_it(client: AsgiClient, neuron: FakeNeuron) -> None:
    neuron.script = endless
    made = (await client.post(RESPONSES, ask(background=True))).json["id"]
    submit = await neuron.submitted.get()
    deleted = await client.open("DELETE", f"{RESPONSES}/{made}").finish()
    assert deleted.json == {"id": made, "object": "response", "deleted": True}
    assert await asyncio.wait_for(neuron.cancelled.get(), 10) == submit.request_id
    assert (await client.get(f"{RESPONSES}/{made}")).status == 404


async def test_a_background_response_that_breaks(
    client: AsgiClient, neuron: FakeNeuron, kept: DatabaseThreads
) -> None:
    neuron.script = breaks
    made = (await client.post(RESPONSES, ask(background=True))).json["id"]
    await until_status(kept, made, "failed")
    stored = (await client.get(f"{RESPONSES}/{made}")).json
    assert stored["error"] == {"code": "server_error", "message": "The engine crashed."}
    assert stored["output"][0]["status"] == "incomplete"


async def test_an_unknown_model_is_refused_at_once(
    client: AsgiClient, neuron: FakeNeuron, kept: DatabaseThreads
) -> None:
    refused = await client.post(RESPONSES, ask(background=True, model="huge"))
    assert (refused.status, refused.error["code"]) == (404, "model_not_found")
    assert await kept.query(StoredResponse.objects.count) == 0


async def test_the_end_is_kept_once_the_database_is_back(
    client: AsgiClient, neuron: FakeNeuron, monkeypatch: pytest.MonkeyPatch, kept: DatabaseThreads
) -> None:
    monkeypatch.setattr(background, "SAVE_AGAIN_AFTER_S", (0.01,) * 200)
    gate = asyncio.Event()
    neuron.script = gated(gate)
    made = (await client.post(RESPONSES, ask(background=True))).json["id"]
    await until_status(kept, made, "in_progress")
    tried = asyncio.Event()
    loop = asyncio.get_running_loop()

    def away(**_named: Any) -> Any:
        loop.call_soon_threadsafe(tried.set)
        raise OperationalError("gone")

    working = services.response_progress
    monkeypatch.setattr(services, "response_progress", away)
    gate.set()
    await asyncio.wait_for(tried.wait(), 10)
    monkeypatch.setattr(services, "response_progress", working)
    await until_status(kept, made, "completed")


async def test_a_gateway_that_stops_says_so(
    client: AsgiClient, neuron: FakeNeuron, gateway: Gateway, kept: DatabaseThreads
) -> None:
    neuron.script = endless
    made = (await client.post(RESPONSES, ask(background=True))).json["id"]
    await neuron.submitted.get()
    await gateway.drain(0)
    record = await kept.query(lambda: selectors.response_find(made))
    assert record is not None and record.status == "failed"
    assert "shutting down" in record.response["error"]["message"]


async def test_a_gateway_that_stops_ends_the_streams_that_watch(
    client: AsgiClient, neuron: FakeNeuron, gateway: Gateway
) -> None:
    neuron.script = endless
    exchange = client.open("POST", RESPONSES, ask(background=True, stream=True))
    await exchange.until(b"on and")
    await gateway.drain(0)
    seen = events(await exchange.finish())
    assert [event["sequence_number"] for event in seen] == list(range(len(seen)))
    assert (seen[-2]["code"], seen[-1]["type"]) == ("shutting_down", "response.failed")
