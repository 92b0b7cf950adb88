"""Files and batches through the whole gateway, by the SDKs of both APIs, kept in a database."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
import pytest_asyncio
from anthropic.types.messages import MessageBatch
from django.utils import timezone
from openai.types import Batch as OpenAIBatch

from inference.batches import services
from inference.batches.file_store import FileStore
from inference.batches.models import Batch
from inference.gateway.database import DatabaseThreads
from inference.protocol.events import Event, Failed, Failure
from inference.protocol.generation import ChatInput, Submit
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import ENTRY, FakeCatalogue, MakeClient
from tests.inference.gateway.fake_metering import KEY, OTHERS_KEY, FakeLedger
from tests.inference.gateway.fake_neuron import FakeNeuron, endless, paris
from tests.inference.image_files import data_uri, png

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("kept")]
CHAT = "/v1/chat/completions"
PATIENCE_S = 60
KEYED = {"authorization": f"Bearer {KEY}"}


def line(custom_id: str, url: str = CHAT, **body: Any) -> str:
    asked = {"model": "tiny", "messages": [{"role": "user", "content": custom_id}], **body}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": asked})


@pytest_asyncio.fixture(autouse=True)
async def nobody_waits(neuron: FakeNeuron) -> None:
    neuron.queue_depth = 0
    await neuron.beat()


async def begin(sdk: openai.AsyncOpenAI, *lines: str) -> OpenAIBatch:
    content = "\n".join(lines).encode()
    file = await sdk.files.create(file=("requests.jsonl", content), purpose="batch")
    return await sdk.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"night": "1"},
    )


async def until_ended(sdk: openai.AsyncOpenAI, batch_id: str) -> OpenAIBatch:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            batch = await sdk.batches.retrieve(batch_id)
            if batch.status in ("completed", "failed", "expired", "cancelled"):
                return batch
            await asyncio.sleep(0.05)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.02)


async def results(sdk: openai.AsyncOpenAI, file_id: str | None) -> dict[str, Any]:
    assert file_id is not None
    content = (await sdk.files.content(file_id)).text
    return {one["custom_id"]: one for one in map(json.loads, content.splitlines())}


async def picky(submit: Submit) -> AsyncIterator[list[Event]]:
    """Refuses those who say so."""
    if "refuse me" in str(submit.request):
        failure = Failure(code="invalid_schema", message="No.", param="messages")
        yield [Failed(request_id=submit.request_id, failure=failure)]
        return
    async for events in paris(submit):
        yield events


async def test_openais_batch_runs(sdk: openai.AsyncOpenAI, neuron: FakeNeuron) -> None:
    neuron.script = picky
    made = await begin(sdk, line("a"), line("refuse me"), "", line("b"), line("s", stream=True))
    assert made.status in ("validating", "in_progress")
    assert (made.endpoint, made.metadata) == (CHAT, {"night": "1"})
    ended = await until_ended(sdk, made.id)
    assert ended.status == "completed"
    assert ended.request_counts is not None
    assert ended.request_counts.to_dict() == {"total": 4, "completed": 2, "failed": 2}
    answers = await results(sdk, ended.output_file_id)
    assert answers.keys() == {"a", "b"}
    response = answers["a"]["response"]
    assert response["status_code"] == 200
    assert response["body"]["choices"][0]["message"]["content"] == "The capital is Paris."
    errors = await results(sdk, ended.error_file_id)
    assert errors["refuse me"]["response"]["body"]["error"]["code"] == "invalid_schema"
    assert errors["s"]["response"]["body"]["error"]["param"] == "stream"
    submits = [frame for frame in neuron.frames if isinstance(frame, Submit)]
    assert all(submit.yields for submit in submits)
    assert {file.purpose for file in (await sdk.files.list()).data} == {"batch", "batch_output"}
    assert [batch.id for batch in (await sdk.batches.list()).data] == [made.id]


async def test_anthropics_batch_runs(
    anthropic_sdk: anthropic.AsyncAnthropic, neuron: FakeNeuron
) -> None:
    neuron.script = picky
    batches = anthropic_sdk.messages.batches

    def asked(text: str) -> Any:
        turn = {"role": "user", "content": text}
        return {
            "custom_id": text.replace(" ", "-"),
            "params": {"model": "tiny", "max_tokens": 9, "messages": [turn]},
        }

    made: MessageBatch = await batches.create(requests=[asked("a"), asked("refuse me")])
    assert (made.processing_status, made.request_counts.processing) == ("in_progress", 2)
    async with asyncio.timeout(PATIENCE_S):
        while (now := await batches.retrieve(made.id)).processing_status != "ended":
            await asyncio.sleep(0.05)
    assert now.request_counts.to_dict() == {
        "processing": 0,
        "succeeded": 1,
        "errored": 1,
        "canceled": 0,
        "expired": 0,
    }
    told = {one.custom_id: one.result async for one in await batches.results(made.id)}
    assert told["a"].type == "succeeded"
    assert told["a"].message.content[0].to_dict() == {
        "type": "text",
        "text": "The capital is Paris.",
    }
    assert told["refuse-me"].type == "errored"
    assert [one.id async for one in batches.list()] == [made.id]
    assert (await batches.delete(made.id)).id == made.id
    with pytest.raises(anthropic.NotFoundError):
        await batches.retrieve(made.id)


async def test_a_batch_is_cancelled(sdk: openai.AsyncOpenAI, neuron: FakeNeuron) -> None:
    neuron.script = endless
    made = await begin(sdk, *(line(str(number)) for number in range(9)))
    await asyncio.wait_for(neuron.submitted.get(), PATIENCE_S)
    cancelling = await sdk.batches.cancel(made.id)
    assert cancelling.status in ("cancelling", "cancelled")
    assert await asyncio.wait_for(neuron.cancelled.get(), PATIENCE_S)
    ended = await until_ended(sdk, made.id)
    assert (ended.status, ended.output_file_id) == ("cancelled", None)


async def test_a_batch_goes_on_where_another_gateway_left_it(
    make_client: MakeClient, neuron: FakeNeuron, tmp_path: Path, kept: DatabaseThreads
) -> None:
    """Of which one request is answered, and another one half written down."""
    files = FileStore(tmp_path / "shared")
    names = ["file-" + digit * 32 for digit in "abc"]
    files.write(names[0], "\n".join(line(one) for one in "xyz").encode())
    done = {"custom_id": "x", "response": {"status_code": 200}, "error": None}
    left = files.part(names[1], "dead")
    files.append_at(left, json.dumps(done).encode() + b'\n{"custom_id": "y", "resp')
    fields = {
        "id": "batch_" + "d" * 32,
        "account": "lab",
        "key": KEY[:13],
        "dialect": "openai",
        "endpoint": CHAT,
        "input_file": names[0],
        "output_file": names[1],
        "error_file": names[2],
    }

    def left_behind() -> None:
        services.batch_create(lasts=timedelta(hours=1), fields=fields)
        lost = timezone.now() - timedelta(seconds=1)
        Batch.objects.update(status="in_progress", lease_until=lost, lease_holder="dead")

    await kept.query(left_behind)
    client = make_client(data_dir=tmp_path / "other", files_dir=tmp_path / "shared")
    path = f"/v1/batches/{fields['id']}"
    other = await client.post("/v1/files", None, headers=KEYED)
    assert other.status == 400, "a form is wanted"
    await _wake(client)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            batch = (await client.open("GET", path, headers=KEYED).finish()).json
            if batch["status"] == "completed":
                break
            await asyncio.sleep(0.05)
    assert batch["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
    ran = [frame.request for frame in neuron.frames if isinstance(frame, Submit)]
    assert len(ran) == 2, "the one that was answered is left alone"
    content = await client.open("GET", f"/v1/files/{names[1]}/content", headers=KEYED).finish()
    assert sorted(json.loads(one)["custom_id"] for one in content.body.splitlines()) == [*"xyz"]
    assert not left.exists(), "what was taken over is deleted"
    strangers = {"authorization": f"Bearer {OTHERS_KEY}"}
    for stranger in (path, f"/v1/files/{names[1]}", f"/v1/files/{names[1]}/content"):
        assert (await client.open("GET", stranger, headers=strangers).finish()).status == 404


async def test_a_batch_whose_input_was_deleted_has_failed(
    make_client: MakeClient, tmp_path: Path, kept: DatabaseThreads
) -> None:
    """It tells what had been answered, and is open no longer."""
    files = FileStore(tmp_path / "shared")
    names = ["file-" + digit * 32 for digit in "123"]
    done = {"custom_id": "x", "response": {"status_code": 200}, "error": None}
    files.append_at(files.part(names[1], "dead"), json.dumps(done).encode() + b"\n")
    fields = {
        "id": "batch_" + "4" * 32,
        "account": "lab",
        "key": KEY[:13],
        "dialect": "openai",
        "endpoint": CHAT,
        "input_file": names[0],
        "output_file": names[1],
        "error_file": names[2],
        "num_total": 3,
    }
    await kept.query(lambda: services.batch_create(lasts=timedelta(hours=1), fields=fields))
    client = make_client(files_dir=tmp_path / "shared")
    await _wake(client)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            path = f"/v1/batches/{fields['id']}"
            batch = (await client.open("GET", path, headers=KEYED).finish()).json
            if batch["status"] not in ("validating", "in_progress"):
                break
            await asyncio.sleep(0.05)
    assert (batch["status"], batch["output_file_id"]) == ("failed", names[1])
    assert batch["errors"]["data"][0]["message"] == "The input file was deleted."
    assert batch["request_counts"] == {"total": 3, "completed": 1, "failed": 0}


async def test_gateways_that_share_a_directory_serve_each_others_files(
    make_client: MakeClient, tmp_path: Path
) -> None:
    shared = {"files_dir": tmp_path / "shared"}
    one, other = (make_client(data_dir=tmp_path / name, **shared) for name in ("a", "b"))
    alone = make_client(data_dir=tmp_path / "c")
    asked = {"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    body = {"requests": [{"custom_id": "a", "params": asked}]}
    made = (await one.post("/v1/messages/batches", body, headers=KEYED)).json
    path = f"/v1/messages/batches/{made['id']}"
    async with asyncio.timeout(PATIENCE_S):
        while True:
            batch = (await other.open("GET", path, headers=KEYED).finish()).json
            if batch["processing_status"] == "ended":
                break
            await asyncio.sleep(0.05)
    told = await other.open("GET", f"{path}/results", headers=KEYED).finish()
    assert json.loads(told.body)["result"]["type"] == "succeeded"
    # Where nothing is shared that is said, and no empty answer is given.
    refused = await alone.open("GET", f"{path}/results", headers=KEYED).finish()
    assert (refused.status, "HELEXA_FILES_DIR" in refused.json["error"]["message"]) == (503, True)
    assert (await other.open("DELETE", path, headers=KEYED).finish()).status == 200
    assert not [*(tmp_path / "shared").iterdir()]


async def _wake(client: AsgiClient) -> None:
    """Another batch makes the gateway look."""
    asked = {"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]}
    body = {"requests": [{"custom_id": "w", "params": {**asked, "model": "unknown"}}]}
    assert (await client.post("/v1/messages/batches", body, headers=KEYED)).status == 200


async def test_a_request_waits_while_others_do(sdk: openai.AsyncOpenAI, neuron: FakeNeuron) -> None:
    neuron.queue_depth = 2
    await neuron.beat()
    made = await begin(sdk, line("a"))
    async with asyncio.timeout(PATIENCE_S):
        while (await sdk.batches.retrieve(made.id)).status != "in_progress":
            await asyncio.sleep(0.05)
    await asyncio.sleep(0.2)
    assert not neuron.frames
    neuron.queue_depth = 0
    await neuron.beat()
    assert (await until_ended(sdk, made.id)).status == "completed"


async def test_what_it_costs_is_the_operators_word(
    make_client: MakeClient, catalogue: FakeCatalogue, neuron: FakeNeuron, ledger: FakeLedger
) -> None:
    entry = replace(ENTRY, input_price_micro_usd=1_000_000, output_price_micro_usd=2_000_000)
    catalogue.listed = [entry]
    client = make_client(batch_discount_percent=40)
    asked = {"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    body = {"requests": [{"custom_id": "a", "params": asked}]}
    assert (await client.post("/v1/messages/batches", body, headers=KEYED)).status == 200
    await until(lambda: len(ledger.settled) == 1)
    (settled,) = ledger.settled
    used = {"prompt_tokens": 7, "cached_tokens": 2, "completion_tokens": 5}
    assert entry.prices is not None
    full = entry.prices.cost_micro_usd(**used)
    assert settled.cost_micro_usd == entry.prices.less(40).cost_micro_usd(**used) < full


async def test_refusals(sdk: openai.AsyncOpenAI, neuron: FakeNeuron) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await sdk.files.create(file=("a.txt", b"a"), purpose="user_data")
    assert refused.value.param == "purpose"
    with pytest.raises(openai.NotFoundError) as missing:
        await sdk.batches.create(
            input_file_id="file-x", endpoint="/v1/embeddings", completion_window="24h"
        )
    assert missing.value.code == "file_not_found"
    wrong = await until_ended(sdk, (await begin(sdk, line("a"), line("a"))).id)
    assert wrong.status == "failed"
    assert wrong.errors is not None and wrong.errors.data is not None
    assert wrong.errors.data[0].message == "Line 2: 'a' is there twice."
    elsewhere = await until_ended(sdk, (await begin(sdk, line("a", "/v1/completions"))).id)
    assert elsewhere.status == "failed"
    assert not neuron.frames


async def test_an_account_keeps_so_much_and_no_more(make_client: MakeClient) -> None:
    client = make_client(max_stored_file_bytes=100, max_open_batches=0)
    large = {"custom_id": "a", "params": {"text": "x" * 100}}
    full = await client.post("/v1/messages/batches", {"requests": [large]}, headers=KEYED)
    assert (full.status, full.json["error"]["details"]["error_code"]) == (429, "insufficient_quota")
    small = {"custom_id": "a", "params": {}}
    many = await client.post("/v1/messages/batches", {"requests": [small]}, headers=KEYED)
    assert (many.status, "open batches" in many.json["error"]["message"]) == (429, True)


def test_a_file_is_not_looked_up_by_a_path(tmp_path: Path) -> None:
    for name in ("../secret", "file-../x", "file-" + "g" * 32, "/etc/passwd"):
        with pytest.raises(AssertionError):
            FileStore(tmp_path).path(name)


async def test_lines_may_hold_images(sdk: openai.AsyncOpenAI, neuron: FakeNeuron) -> None:
    neuron.capabilities = ["chat", "vision"]
    await neuron.beat()
    seen = [{"type": "image_url", "image_url": {"url": data_uri(png(30, 20))}}]
    bad = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]
    batch = await begin(
        sdk,
        line("seen", messages=[{"role": "user", "content": seen}]),
        line("bad", messages=[{"role": "user", "content": bad}]),
    )
    batch = await until_ended(sdk, batch.id)
    assert set(await results(sdk, batch.output_file_id)) == {"seen"}
    (refused,) = (await results(sdk, batch.error_file_id)).values()
    assert "invalid_image" in json.dumps(refused)
    (submit,) = [frame for frame in neuron.frames if isinstance(frame, Submit)]
    assert isinstance(submit.request.input, ChatInput)
    assert [image.width_px for image in submit.request.input.messages[0].images] == [30]
