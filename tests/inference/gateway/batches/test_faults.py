"""Batches whose rows end engines or neurons, a disk that is full, batches that another gateway
began and files that several gateways share."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import openai
import pytest
from django.utils import timezone

from inference.batches import services
from inference.batches.files import FileStore, ResultFiles
from inference.batches.models import Batch
from inference.gateway import batch_worker
from inference.gateway.database import DatabaseThreads
from inference.gateway.gateway import Gateway
from inference.protocol.events import Accepted, Event, Failed, Failure
from inference.protocol.generation import Submit
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.batches.test_batches import (
    CHAT,
    ENDS,
    KEYED,
    begin,
    counts,
    line,
    message,
    picky,
    polled,
    results,
    until_ended,
)
from tests.inference.gateway.bodies import chat
from tests.inference.gateway.conftest import MakeClient
from tests.inference.gateway.fake_metering import KEY, OTHERS_KEY
from tests.inference.gateway.fake_neuron import FakeNeuron, paris

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("kept", "idle_neuron"),
]


async def test_a_disk_that_is_full_for_a_while_fails_no_batch(
    sdk: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "LEASE_S", 0.2)
    monkeypatch.setattr(batch_worker, "LOOK_FOR_BATCHES_S", 0.05)
    append, full = ResultFiles.append, [OSError(errno.ENOSPC, "No space left on device")]

    def full_at_first(*args: Any) -> None:
        if full:
            raise full.pop()
        append(*args)

    monkeypatch.setattr(ResultFiles, "append", full_at_first)
    made = await begin(sdk, line("a"), line("b"))
    ended = await until_ended(sdk, made.id)
    assert ended.status == "completed"
    assert (await results(sdk, ended.output_file_id)).keys() == {"a", "b"}


async def only_the_poison_failed(sdk: openai.AsyncOpenAI, *names: str) -> None:
    """Runs a batch of rows of these names."""
    made = await begin(sdk, *map(line, names))
    ended = await until_ended(sdk, made.id)
    assert counts(ended) == (len(names), len(names) - 1, 1)
    (error,) = (await results(sdk, ended.error_file_id)).values()
    assert error["custom_id"] == "poison"
    assert error["response"]["status_code"] == 500
    assert error["response"]["body"]["error"]["code"] == "request_broke_worker"


async def test_a_row_that_ends_engines(sdk: openai.AsyncOpenAI, neuron: FakeNeuron) -> None:
    """It used to be run until its batch expired."""
    num_runs: Counter[str] = Counter()
    are_running: set[str] = set()
    has_died = asyncio.Event()

    async def script(submit: Submit) -> AsyncIterator[list[Event]]:
        name = str(chat(submit).messages[0].content)
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
    await only_the_poison_failed(sdk, "poison", "first", "second", "third")
    assert num_runs["poison"] == max(num_runs.values()) == 2


async def test_a_row_under_which_neurons_die_is_run_three_times_at_most(
    sdk: openai.AsyncOpenAI, neuron: FakeNeuron, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was run until its batch expired, and ended an instance each time."""
    monkeypatch.setattr(batch_worker, "MOST_PAUSE_S", 0.05)
    num_runs = itertools.count()

    async def script(submit: Submit) -> AsyncIterator[list[Event]]:
        if chat(submit).messages[0].content != "poison":
            async for events in paris(submit):
                yield events
            return
        next(num_runs)
        yield [Accepted(request_id=submit.request_id, prompt_tokens=3)]
        while (stream := gateway.streams.get(submit.request_id)) and not stream.accepted:
            await asyncio.sleep(0.01)
        neuron.epoch = uuid.uuid4().hex
        neuron.sequence_numbers.clear()
        await neuron.beat()

    neuron.script = script
    await only_the_poison_failed(sdk, "poison", "other")
    assert next(num_runs) == 3


async def batch_once(client: AsgiClient, path: str, holds: Callable[[Any], bool]) -> Any:
    """Polls the batch until ``holds`` of it. Returns it."""

    async def ask() -> Any:
        return (await client.get(path, headers=KEYED)).json

    return await polled(ask, holds)


async def test_batches_of_another_gateway(
    make_client: MakeClient, neuron: FakeNeuron, tmp_path: Path, kept: DatabaseThreads
) -> None:
    """They are continued. One whose input was deleted returns the answers so far, and is open no
    longer."""
    files = FileStore(tmp_path / "shared")
    done = json.dumps({"custom_id": "x", "response": {"status_code": 200}, "error": None}).encode()
    for digits, has_input, status, num_done in (
        ("abc", True, "completed", 3),
        ("123", False, "failed", 1),
    ):
        names = [f"file-{digit * 32}" for digit in digits]
        if has_input:
            files.write(names[0], ["\n".join(line(one) for one in "xyz").encode()])
        left = files.part(names[1], "dead")
        files.write_at(left, [done + b'\n{"custom_id": "y", "resp'])
        fields = {
            "id": f"batch_{digits[0] * 32}",
            "account": "lab",
            "key": KEY[:13],
            "dialect": "openai",
            "endpoint": CHAT,
            "num_total": 3,
            **dict(zip(("input_file", "output_file", "error_file"), names, strict=True)),
        }
        lost = timezone.now() - timedelta(seconds=1)
        lease = {"status": "in_progress", "lease_until": lost, "lease_holder": "dead"}

        def left_behind(fields: Any = fields, lease: Any = lease) -> None:
            services.batch_create(lasts=timedelta(hours=1), fields=fields, max_open=9)
            Batch.objects.filter(pk=fields["id"]).update(**lease)

        await kept.query(left_behind)
        client = make_client(data_dir=tmp_path / digits, files_dir=tmp_path / "shared")
        unknown = message("wake")  # another batch makes the gateway look
        unknown["params"]["model"] = "unknown"
        body = {"requests": [unknown]}
        assert (await client.post("/v1/messages/batches", body, headers=KEYED)).status == 200
        path = f"/v1/batches/{fields['id']}"
        batch = await batch_once(client, path, lambda answer: answer["status"] in ENDS)
        assert (batch["status"], batch["output_file_id"]) == (status, names[1])
        assert batch["request_counts"] == {"total": 3, "completed": num_done, "failed": 0}
        if has_input:
            ran = [frame for frame in neuron.frames if isinstance(frame, Submit)]
            assert len(ran) == 2, "the one that was answered is left alone"
            content = await client.get(f"/v1/files/{names[1]}/content", headers=KEYED)
            found = sorted(json.loads(one)["custom_id"] for one in content.body.splitlines())
            assert found == [*"xyz"]
            assert not left.exists(), "what was taken over is deleted"
            strangers = {"authorization": f"Bearer {OTHERS_KEY}"}
            for stranger in (path, f"/v1/files/{names[1]}", f"/v1/files/{names[1]}/content"):
                assert (await client.get(stranger, headers=strangers)).status == 404
        else:
            assert batch["errors"]["data"][0]["message"] == "The input file was deleted."


async def test_a_gateway_that_stops_leaves_its_batches_to_others_at_once(
    sdk: openai.AsyncOpenAI, neuron: FakeNeuron, gateway: Gateway, kept: DatabaseThreads
) -> None:
    has_begun = asyncio.Event()

    async def script(submit: Submit) -> AsyncIterator[list[Event]]:
        yield [Accepted(request_id=submit.request_id, prompt_tokens=3)]
        has_begun.set()
        await asyncio.Event().wait()

    neuron.script = script
    made = await begin(sdk, line("a"))
    await has_begun.wait()
    await gateway.drain(grace_s=0.0)
    leases = Batch.objects.filter(pk=made.id).values_list("status", "lease_until", "lease_holder")
    assert await kept.query(leases.get) == ("in_progress", None, "")


async def test_gateways_may_share_a_directory(
    make_client: MakeClient, tmp_path: Path, neuron: FakeNeuron
) -> None:
    shared = {"files_dir": tmp_path / "shared"}
    one, other = (make_client(data_dir=tmp_path / name, **shared) for name in ("a", "b"))
    alone = make_client(data_dir=tmp_path / "c")
    neuron.script = picky
    body = {"requests": [message("a"), message("refuse me")]}
    made = (await one.post("/v1/messages/batches", body, headers=KEYED)).json
    assert (made["processing_status"], made["request_counts"]["processing"]) == ("in_progress", 2)
    path = f"/v1/messages/batches/{made['id']}"
    ended = await batch_once(other, path, lambda answer: answer["processing_status"] == "ended")
    counted = {"processing": 0, "succeeded": 1, "errored": 1, "canceled": 0, "expired": 0}
    assert ended["request_counts"] == counted
    answer = await other.get(f"{path}/results", headers=KEYED)
    found = {
        each["custom_id"]: each["result"] for each in map(json.loads, answer.body.splitlines())
    }
    assert found["a"]["message"]["content"] == [{"type": "text", "text": "The capital is Paris."}]
    assert found["refuse-me"]["type"] == "errored"
    # Without a shared directory the answer is an error, not an empty list.
    refused = await alone.get(f"{path}/results", headers=KEYED)
    assert (refused.status, "HELEXA_FILES_DIR" in refused.json["error"]["message"]) == (503, True)
    assert (await other.open("DELETE", path, headers=KEYED).finish()).status == 200
    assert (await other.get(path, headers=KEYED)).status == 404
    assert not [*(tmp_path / "shared").iterdir()]
