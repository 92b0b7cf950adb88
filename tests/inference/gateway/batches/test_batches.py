"""Batches of OpenAI's and Anthropic's through the whole gateway, by their SDKs, and their files: an
account's share, uploads, expiry."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import openai
import pytest
from django.utils import timezone
from openai.types import Batch as OpenAIBatch

from inference.batches.files import FileStore
from inference.batches.models import StoredFile
from inference.gateway.database import DatabaseThreads
from inference.gateway.gateway import Gateway
from inference.protocol.events import Event
from inference.protocol.generation import Submit
from metering.principal import Scope
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.bodies import PATIENCE_S, chat, chat_body, until
from tests.inference.gateway.conftest import ENTRY, FakeCatalogue, MakeClient
from tests.inference.gateway.fake_metering import KEY, FakeDirectory, FakeLedger
from tests.inference.gateway.fake_neuron import FakeNeuron, breaking, endless, paris
from tests.inference.gateway.upstreams.conftest import FORM, form, part
from tests.inference.image_files import data_uri, png

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("kept", "idle_neuron"),
]


async def test_openais_batch_runs(sdk: openai.AsyncOpenAI, neuron: FakeNeuron) -> None:
    neuron.script = picky
    neuron.capabilities = ["chat", "vision"]
    await neuron.beat()
    urls = (data_uri(png(30, 20)), "data:image/png;base64,aGk=")
    seen, bad = (chat_body(url)["messages"] for url in urls)
    lines = [line("a"), line("refuse me"), "", line("b"), line("s", stream=True)]
    lines += [line("seen", messages=seen), line("bad", messages=bad)]
    made = await begin(sdk, *lines)
    assert made.status in ("validating", "in_progress")
    assert (made.endpoint, made.metadata) == (CHAT, {"night": "1"})
    ended = await until_ended(sdk, made.id)
    assert (ended.status, counts(ended)) == ("completed", (6, 3, 3))
    answers = await results(sdk, ended.output_file_id)
    assert answers.keys() == {"a", "b", "seen"}
    response = answers["a"]["response"]
    assert response["status_code"] == 200
    assert response["body"]["choices"][0]["message"]["content"] == "The capital is Paris."
    errors = await results(sdk, ended.error_file_id)
    refusals = {name: one["response"]["body"]["error"] for name, one in errors.items()}
    assert refusals["refuse me"]["code"] == "invalid_schema"
    assert refusals["bad"]["code"] == "invalid_image"
    assert refusals["s"]["param"] == "stream"
    submits = [frame for frame in neuron.frames if isinstance(frame, Submit)]
    assert all(submit.yields for submit in submits)
    (image,) = (one for submit in submits for one in chat(submit).messages[0].images)
    assert image.width_px == 30
    assert {file.purpose for file in (await sdk.files.list()).data} == {"batch", "batch_output"}
    assert [batch.id for batch in (await sdk.batches.list()).data] == [made.id]


async def test_a_batch_waits_and_is_cancelled(sdk: openai.AsyncOpenAI, neuron: FakeNeuron) -> None:
    neuron.queue_depth = 2
    await neuron.beat()
    made = await begin(sdk, line("a"))
    begun = made.id
    await polled(lambda: sdk.batches.retrieve(begun), lambda one: one.status == "in_progress")
    await asyncio.sleep(0.2)
    assert not neuron.frames
    neuron.queue_depth = 0
    await neuron.beat()
    assert (await until_ended(sdk, made.id)).status == "completed"
    neuron.submitted.get_nowait()
    neuron.script = endless
    made = await begin(sdk, *(line(str(number)) for number in range(9)))
    await asyncio.wait_for(neuron.submitted.get(), PATIENCE_S)
    cancelling = await sdk.batches.cancel(made.id)
    assert cancelling.status in ("cancelling", "cancelled")
    assert await asyncio.wait_for(neuron.cancelled.get(), PATIENCE_S)
    ended = await until_ended(sdk, made.id)
    assert (ended.status, ended.output_file_id) == ("cancelled", None)


async def test_a_key_that_lost_its_scope_runs_no_more_rows(
    sdk: openai.AsyncOpenAI, neuron: FakeNeuron, directory: FakeDirectory
) -> None:
    keyed = sdk.with_options(api_key=KEY)
    neuron.queue_depth = 2
    await neuron.beat()
    made = await begin(keyed, line("a"))
    own = directory.keys[KEY]
    directory.restrict(KEY, scopes=frozenset({Scope.USAGE_READ}))
    neuron.queue_depth = 0
    await neuron.beat()
    await until(lambda: directory.num_asked_again > 0)
    directory.keys[KEY] = own
    ended = await until_ended(keyed, made.id)
    assert counts(ended) == (1, 0, 1) and not neuron.frames
    (error,) = (await results(keyed, ended.error_file_id)).values()
    assert error["response"]["status_code"] == 403
    assert error["response"]["body"]["error"]["code"] == "insufficient_scope"


async def test_what_it_costs_is_the_operators_word(
    make_client: MakeClient, catalogue: FakeCatalogue, neuron: FakeNeuron, ledger: FakeLedger
) -> None:
    entry = replace(ENTRY, input_price_micro_usd=1_000_000, output_price_micro_usd=2_000_000)
    catalogue.listed = [entry]
    client = make_client(batch_discount_percent=40)
    body = {"requests": [message("a")]}
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


PURPOSE, FILE = part("purpose", b"batch"), part("file", b"", filename="a")
HOUR: Any = {"anchor": "created_at", "seconds": 3600}


async def test_what_an_account_keeps(make_client: MakeClient, tmp_path: Path) -> None:
    client = make_client(max_stored_file_bytes=100, max_open_batches=0)
    for text, word in (("x" * 100, "bytes"), ("", "open batches")):
        body = {"requests": [{"custom_id": "a", "params": {"text": text} if text else {}}]}
        refused = await client.post("/v1/messages/batches", body, headers=KEYED)
        assert (refused.status, word in refused.json["error"]["message"]) == (429, True)
        assert refused.json["error"]["details"]["error_code"] == "insufficient_quota"
    for name in ("../secret", "file-../x", "file-" + "g" * 32, "/etc/passwd"):
        with pytest.raises(AssertionError):
            FileStore(tmp_path).path(name)


@each_case(
    ("body", "status", "found"),
    [
        (form(PURPOSE, part("file", b"{}\n", filename="a.jsonl")), 200, "a.jsonl"),
        # As aiohttp sends it.
        (form(PURPOSE, FILE).replace(b'="a"', b"*=utf-8''%C3%A4"), 200, "ä"),
        (form(PURPOSE, part("mood", b""), FILE), 400, "mood"),
        (b"nothing of the kind", 400, None),
        (form(PURPOSE), 400, "file"),
        (form(part("file", b"no name")), 400, "file"),
        (form(*(part(f"field-{number}", b"") for number in range(1001))), 400, None),
        (form(*101 * [FILE]), 400, "file"),
    ],
)
async def test_forms(client: AsgiClient, body: bytes, status: int, found: str | None) -> None:
    answer = await client.post("/v1/files", parts=[body], headers=KEYED | FORM)
    assert answer.status == status
    assert (answer.json["filename"] if status == 200 else answer.error["param"]) == found
    for kind in ("application/json", "multipart/form-data"):  # the one without a boundary
        headers = KEYED | {"content-type": kind}
        assert (await client.post("/v1/files", parts=[body], headers=headers)).status == 400


async def test_expiry(kept: DatabaseThreads, sdk: openai.AsyncOpenAI, gateway: Gateway) -> None:
    for expiry, field in (
        ({"anchor": "last_active_at", "seconds": 3600}, "anchor"),
        ({"anchor": "created_at", "seconds": 60}, "seconds"),
        ({"anchor": "created_at", "seconds": 2_592_001}, "seconds"),
        ({"anchor": "created_at"}, "seconds"),
        ({"seconds": 3600}, "anchor"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            await upload(sdk, expires_after=expiry)
        assert refused.value.param == f"expires_after[{field}]"
    first, second = await upload(sdk, expires_after=HOUR), await upload(sdk)
    assert (first.expires_at, second.expires_at) == (first.created_at + 3600, None)
    files = FileStore(gateway.config.stored_files_dir)
    assert files.has(first.id)
    past = timezone.now() - timedelta(seconds=1)
    rows = StoredFile.objects.filter(pk=first.id)
    await kept.query(lambda: rows.update(expires_at=past))
    for ask in (sdk.files.retrieve, sdk.files.content):
        with pytest.raises(openai.NotFoundError):
            await ask(first.id)
    assert [file.id async for file in sdk.files.list()] == [second.id]
    # Another upload that will expire has the gateway look at once.
    last = await upload(sdk, expires_after=HOUR)
    await until(lambda: not files.has(first.id))
    assert files.has(second.id) and files.has(last.id)
    left = await kept.query(lambda: set(StoredFile.objects.values_list("pk", flat=True)))
    assert {second.id, last.id} <= left


async def upload(sdk: openai.AsyncOpenAI, **more: Any) -> Any:
    return await sdk.files.create(file=("a.jsonl", b"{}"), purpose="batch", **more)


T = TypeVar("T")
CHAT = "/v1/chat/completions"
KEYED = {"authorization": f"Bearer {KEY}"}
ENDS = ("completed", "failed", "expired", "cancelled")


def line(custom_id: str, url: str = CHAT, **body: Any) -> str:
    asked = {"model": "tiny", "messages": [{"role": "user", "content": custom_id}], **body}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": asked})


async def begin(sdk: openai.AsyncOpenAI, *lines: str) -> OpenAIBatch:
    content = "\n".join(lines).encode()
    file = await sdk.files.create(file=("requests.jsonl", content), purpose="batch")
    return await sdk.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"night": "1"},
    )


async def polled(ask: Callable[[], Awaitable[T]], holds: Callable[[T], bool]) -> T:
    """Asks until ``holds`` of the answer. Returns it."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds(answer := await ask()):
            await asyncio.sleep(0.05)
    return answer


async def until_ended(sdk: openai.AsyncOpenAI, batch_id: str) -> OpenAIBatch:
    return await polled(lambda: sdk.batches.retrieve(batch_id), lambda one: one.status in ENDS)


def message(text: str) -> Any:
    turn = {"role": "user", "content": text}
    return {
        "custom_id": text.replace(" ", "-"),
        "params": {"model": "tiny", "max_tokens": 9, "messages": [turn]},
    }


async def results(sdk: openai.AsyncOpenAI, file_id: str | None) -> dict[str, Any]:
    assert file_id is not None
    content = (await sdk.files.content(file_id)).text
    return {one["custom_id"]: one for one in map(json.loads, content.splitlines())}


def counts(batch: OpenAIBatch) -> tuple[int, int, int]:
    """All of its requests, the completed and the failed."""
    found = batch.request_counts
    assert found is not None
    return found.total, found.completed, found.failed


async def picky(submit: Submit) -> AsyncIterator[list[Event]]:
    """Refuses requests that contain "refuse me"."""
    is_refused = "refuse me" in str(submit.request)
    async for events in (breaking("invalid_schema") if is_refused else paris)(submit):
        yield events
