"""Embeddings through the whole gateway: a real Redis between it and a fake neuron."""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import AsyncIterator

from inference.gateway.gateway import Gateway
from inference.protocol.events import Accepted, Embedded, Event, Failed, Failure, Usage
from inference.protocol.generation import EmbeddingRequest, Submit, TextInput
from inference.protocol.load_report import LoadReport
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.bodies import embeddings_body
from tests.inference.gateway.fake_neuron import FakeNeuron

EMBEDDINGS = "/v1/embeddings"
VECTOR = struct.pack("<3f", 0.6, -0.8, 0.0)


async def embeds(submit: Submit) -> AsyncIterator[list[Event]]:
    yield [Accepted(request_id=submit.request_id, prompt_tokens=6)]
    usage = Usage(prompt_tokens=6, completion_tokens=0)
    yield [Embedded(request_id=submit.request_id, vectors=[VECTOR, VECTOR], usage=usage)]


async def accepts_only(submit: Submit) -> AsyncIterator[list[Event]]:
    yield [Accepted(request_id=submit.request_id, prompt_tokens=6)]
    await asyncio.Event().wait()


async def test_numbers(client: AsgiClient, neuron: FakeNeuron) -> None:
    neuron.script = embeds
    answer = await client.post(EMBEDDINGS, embeddings_body())
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    assert answer.json["data"][1] == {
        "object": "embedding",
        "index": 1,
        "embedding": [0.6, -0.8, 0.0],
    }
    (submit,) = neuron.frames
    assert isinstance(submit, Submit)
    assert submit.request == EmbeddingRequest(model="tiny", input=TextInput(texts=["one", "two"]))


async def test_base64_by_an_alias(client: AsgiClient, neuron: FakeNeuron) -> None:
    neuron.script = embeds
    answer = await client.post(
        f"{EMBEDDINGS}/", embeddings_body(model="gpt-4o", encoding_format="base64")
    )
    assert answer.json["model"] == "gpt-4o"
    assert base64.b64decode(answer.json["data"][0]["embedding"]) == VECTOR


async def test_the_neurons_refusal(client: AsgiClient, neuron: FakeNeuron) -> None:
    async def refuses(submit: Submit) -> AsyncIterator[list[Event]]:
        failure = Failure(code="context_length_exceeded", message="300 of 256", param="input")
        yield [Failed(request_id=submit.request_id, failure=failure)]

    neuron.script = refuses
    answer = await client.post(EMBEDDINGS, embeddings_body())
    assert answer.status == 400
    assert (answer.error["code"], answer.error["param"]) == ("context_length_exceeded", "input")


async def test_refusals_of_ours(client: AsgiClient, neuron: FakeNeuron) -> None:
    assert (await client.post(EMBEDDINGS, embeddings_body(input=""))).status == 400
    assert (await client.post(EMBEDDINGS, embeddings_body(model="unknown"))).status == 404
    wrong_method = await client.open("GET", EMBEDDINGS).finish()
    assert (wrong_method.status, wrong_method.headers["allow"]) == (405, "POST")
    assert not neuron.frames


async def test_whoever_leaves_is_cancelled(
    client: AsgiClient, neuron: FakeNeuron, gateway: Gateway
) -> None:
    neuron.script = accepts_only
    exchange = client.open("POST", EMBEDDINGS, embeddings_body())
    submit = await asyncio.wait_for(neuron.submitted.get(), 60)
    exchange.leave()
    await exchange.finish()
    assert await asyncio.wait_for(neuron.cancelled.get(), 60) == submit.request_id
    assert exchange.body == b""
    async with asyncio.timeout(60):
        while len(gateway.streams):  # until the neuron's end arrives
            await asyncio.sleep(0.01)


async def test_an_input_may_take_the_whole_context(client: AsgiClient, neuron: FakeNeuron) -> None:
    """There is no answer that would need room in it."""
    neuron.capabilities = ["embeddings"]
    neuron.report = LoadReport(
        architecture="bert",
        kind="embedding",
        device="cpu",
        dtype="float32",
        num_parameters=1,
        weight_bytes=1,
        kv_bytes=0,
        num_kv_blocks=0,
        kv_block_tokens=0,
        context_tokens=256,
        vocab_size=30522,
        quantization="dense",
        compiled="",
        load_seconds=0.0,
        tokenizer_dir="",
    )
    await neuron.beat()
    card = (await client.open("GET", "/v1/models/tiny").finish()).json
    assert card["limit"] == {"context": 256, "input": 256, "output": 0}
    assert list(card["capabilities"]) == ["embeddings"]
