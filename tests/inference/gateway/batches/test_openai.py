"""Files and batches through the whole gateway, by the SDKs of both APIs, kept in a database."""

from __future__ import annotations

import asyncio
import base64
import errno
import itertools
import json
import threading
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
import pytest_asyncio
from anthropic.types.messages import MessageBatch
from msgspec import to_builtins

from inference.batches import services
from inference.batches.file_store import FileStore
from inference.batches.result_files import ResultFiles
from inference.gateway.batches import row as batch_row
from inference.gateway.batches import worker as batch_worker
from inference.gateway.gateway import Gateway
from inference.gateway.server.bodies import FILE_PIECE_BYTES
from inference.neuron.events.parts import batches_within
from inference.protocol.events import (
    MAX_BATCH_BYTES,
    Accepted,
    Embedded,
    Event,
    Failed,
    Failure,
    Usage,
)
from inference.protocol.generation import ChatInput, Submit
from tests.inference.gateway.batches_support import (
    CHAT,
    KEYED,
    begin,
    line,
    message,
    picky,
    results,
    until_ended,
    until_messages_ended,
)
from tests.inference.gateway.conftest import ENTRY, FakeCatalogue, MakeClient
from tests.inference.gateway.fake_metering import FakeLedger
from tests.inference.gateway.fake_neuron import FakeNeuron, endless, paris
from tests.inference.gateway.waiting import PATIENCE_S, until
from tests.inference.image_files import data_uri, png

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("kept")]


@pytest_asyncio.fixture(autouse=True)
async def nobody_waits(neuron: FakeNeuron) -> None:
    neuron.queue_depth = 0
    await neuron.beat()


async def test_a_disk_that_is_full_for_a_while_fails_no_batch(
    sdk: openai.AsyncOpenAI, neuron: FakeNeuron, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "LEASE_S", 0.2)
    monkeypatch.setattr(batch_worker, "LOOK_FOR_BATCHES_S", 0.05)
    append, tries = ResultFiles.append, itertools.count()

    def full_at_first(results: ResultFiles, file_id: str, lines: bytes) -> None:
        if next(tries) == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(results, file_id, lines)

    monkeypatch.setattr(ResultFiles, "append", full_at_first)
    made = await begin(sdk, line("a"), line("b"))
    ended = await until_ended(sdk, made.id)
    assert ended.status == "completed"
    assert (await results(sdk, ended.output_file_id)).keys() == {"a", "b"}


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


async def test_a_row_that_ends_engines_is_run_twice_and_its_neighbours_are_answered(
    sdk: openai.AsyncOpenAI, neuron: FakeNeuron
) -> None:
    """It used to be run until its batch expired."""
    num_runs: Counter[str] = Counter()
    are_running: set[str] = set()
    has_died = asyncio.Event()

    async def script(submit: Submit) -> AsyncIterator[list[Event]]:
        text = json.dumps(to_builtins(submit.request))
        name = next(name for name in ("poison", "first", "second", "third") if name in text)
        num_runs[name] += 1
        if name != "poison" and has_died.is_set():
            async for events in paris(submit):
                yield events
            return
        are_running.add(submit.request_id)
        yield [Accepted(request_id=submit.request_id, prompt_tokens=3)]
        if name == "poison":
            while len(are_running) < 2 and num_runs[name] == 1:
                await asyncio.sleep(0.01)
            has_died.set()
        await has_died.wait()
        failure = Failure(code="engine_crashed", message="it ended", retry_after_s=0.01)
        yield [Failed(request_id=submit.request_id, failure=failure)]

    neuron.script = script
    made = await begin(sdk, *map(line, ("poison", "first", "second", "third")))
    ended = await until_ended(sdk, made.id)
    assert ended.request_counts is not None
    assert ended.request_counts.to_dict() == {"total": 4, "completed": 3, "failed": 1}
    (error,) = (await results(sdk, ended.error_file_id)).values()
    assert error["custom_id"] == "poison"
    assert error["response"]["status_code"] == 500
    assert error["response"]["body"]["error"]["code"] == "request_broke_worker"
    assert num_runs["poison"] == 2
    assert max(num_runs.values()) == 2


async def test_a_row_under_which_neurons_die_is_run_three_times_at_most(
    sdk: openai.AsyncOpenAI,
    neuron: FakeNeuron,
    gateway: Gateway,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was run until its batch expired, and ended an instance each time."""
    monkeypatch.setattr(batch_row, "MOST_PAUSE_S", 0.05)
    num_runs: Counter[str] = Counter()

    async def script(submit: Submit) -> AsyncIterator[list[Event]]:
        name = "poison" if "poison" in json.dumps(to_builtins(submit.request)) else "other"
        num_runs[name] += 1
        if name == "other":
            async for events in paris(submit):
                yield events
            return
        yield [Accepted(request_id=submit.request_id, prompt_tokens=3)]
        while (stream := gateway.streams.get(submit.request_id)) and not stream.accepted:
            await asyncio.sleep(0.01)
        neuron.epoch = uuid.uuid4().hex
        neuron.sequence_numbers.clear()
        await neuron.beat()

    neuron.script = script
    made = await begin(sdk, line("poison"), line("other"))
    ended = await until_ended(sdk, made.id)
    assert ended.request_counts is not None
    assert ended.request_counts.to_dict() == {"total": 2, "completed": 1, "failed": 1}
    (error,) = (await results(sdk, ended.error_file_id)).values()
    assert error["custom_id"] == "poison"
    assert error["response"]["body"]["error"]["code"] == "request_broke_worker"
    assert num_runs["poison"] == 3


async def test_anthropics_batch_runs(
    anthropic_sdk: anthropic.AsyncAnthropic, neuron: FakeNeuron
) -> None:
    neuron.script = picky
    batches = anthropic_sdk.messages.batches
    made: MessageBatch = await batches.create(requests=[message("a"), message("refuse me")])
    assert (made.processing_status, made.request_counts.processing) == ("in_progress", 2)
    now = await until_messages_ended(anthropic_sdk, made.id)
    assert now.request_counts.to_dict() == {
        "processing": 0,
        "succeeded": 1,
        "errored": 1,
        "canceled": 0,
        "expired": 0,
    }
    results_by_id = {one.custom_id: one.result async for one in await batches.results(made.id)}
    assert results_by_id["a"].type == "succeeded"
    assert results_by_id["a"].message.content[0].to_dict() == {
        "type": "text",
        "text": "The capital is Paris.",
    }
    assert results_by_id["refuse-me"].type == "errored"
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


async def test_an_answer_that_is_written_while_its_batch_is_cancelled_is_reported_once(
    anthropic_sdk: anthropic.AsyncAnthropic, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = anthropic_sdk.messages.batches
    is_writing, may_write, is_heard = threading.Event(), threading.Event(), threading.Event()
    append, progress = ResultFiles.append, services.batch_progress

    def slowly(results: ResultFiles, file_id: str, lines: bytes) -> None:
        is_writing.set()
        may_write.wait(PATIENCE_S)
        append(results, file_id, lines)

    def heard(**values: Any) -> str | None:
        status = progress(**values)
        if status == "cancelling":
            is_heard.set()
        return status

    monkeypatch.setattr(ResultFiles, "append", slowly)
    monkeypatch.setattr(services, "batch_progress", heard)
    made = await batches.create(requests=[message("a")])
    await until(is_writing.is_set)
    await batches.cancel(made.id)
    await until(is_heard.is_set)
    await asyncio.sleep(0.1)  # it is about to say what was not run
    may_write.set()
    ended = await until_messages_ended(anthropic_sdk, made.id)
    assert (ended.request_counts.succeeded, ended.request_counts.canceled) == (1, 0)
    results_by_id = [
        (one.custom_id, one.result.type) async for one in await batches.results(made.id)
    ]
    assert results_by_id == [("a", "succeeded")]


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


async def test_a_large_file_comes_and_goes_in_pieces(make_client: MakeClient) -> None:
    content = b"\n".join(line(f"{n:07}").encode() for n in range(20_000))
    client = make_client(max_body_bytes=2 * len(content))
    fields = (("purpose", b"batch"), ('file"; filename="requests.jsonl', content))
    form = b"".join(
        b'--x\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (name.encode(), value)
        for name, value in fields
    )
    form += b"--x--\r\n"
    parts = [form[start : start + 65_536] for start in range(0, len(form), 65_536)]
    headers = KEYED | {"content-type": "multipart/form-data; boundary=x"}
    file = (await client.post("/v1/files", parts=parts, headers=headers)).json
    assert file["bytes"] == len(content)
    answer = await client.get(f"/v1/files/{file['id']}/content", headers=KEYED)
    assert answer.body == content
    assert int(answer.headers["content-length"]) == len(content)
    assert max(answer.piece_sizes) <= FILE_PIECE_BYTES < len(content) / 5


async def test_a_large_answer_is_one_line_of_the_results(
    sdk: openai.AsyncOpenAI, neuron: FakeNeuron
) -> None:
    vectors = [bytes([n % 100]) * 4096 for n in range(300)]

    async def embeds(submit: Submit) -> AsyncIterator[list[Event]]:
        yield [Accepted(request_id=submit.request_id, prompt_tokens=1)]
        usage = Usage(prompt_tokens=1, completion_tokens=0)
        answer = Embedded(request_id=submit.request_id, vectors=vectors, usage=usage)
        for batch in batches_within(MAX_BATCH_BYTES - 4096, [answer]):
            yield batch

    neuron.script = embeds
    body = {"model": "tiny", "input": ["x"] * 300, "encoding_format": "base64"}
    asked = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": body}
    file = await sdk.files.create(
        file=("requests.jsonl", json.dumps(asked).encode()), purpose="batch"
    )
    made = await sdk.batches.create(
        input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h"
    )
    ended = await until_ended(sdk, made.id)
    (answered,) = (await results(sdk, ended.output_file_id)).values()
    data = answered["response"]["body"]["data"]
    assert [base64.b64decode(one["embedding"]) for one in data] == vectors
