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
from msgspec import to_builtins

from inference.batches import services
from inference.batches.files import FileStore, ResultFiles
from inference.batches.models import Batch
from inference.gateway import batch_worker
from inference.gateway.database import DatabaseThreads
from inference.gateway.gateway import Gateway
from inference.protocol.events import Accepted, Event, Failed, Failure
from inference.protocol.generation import Submit
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.batches.conftest import (
    CHAT,
    KEYED,
    begin,
    counts,
    line,
    message,
    polled,
    results,
    until_ended,
)
from tests.inference.gateway.conftest import MakeClient
from tests.inference.gateway.fake_metering import KEY, OTHERS_KEY
from tests.inference.gateway.fake_neuron import FakeNeuron, paris

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("kept", "idle_neuron"),
]


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


async def only_the_poison_failed(sdk: openai.AsyncOpenAI, *names: str) -> None:
    """Runs a batch of rows of these names."""
    made = await begin(sdk, *map(line, names))
    ended = await until_ended(sdk, made.id)
    assert counts(ended) == (len(names), len(names) - 1, 1)
    (error,) = (await results(sdk, ended.error_file_id)).values()
    assert error["custom_id"] == "poison"
    assert error["response"]["status_code"] == 500
    assert error["response"]["body"]["error"]["code"] == "request_broke_worker"


def name_of(submit: Submit, *names: str) -> str:
    """Which row that is."""
    text = json.dumps(to_builtins(submit.request))
    return next(name for name in names if name in text)


async def test_a_row_that_ends_engines(sdk: openai.AsyncOpenAI, neuron: FakeNeuron) -> None:
    """It used to be run until its batch expired."""
    names = ("poison", "first", "second", "third")
    num_runs: Counter[str] = Counter()
    are_running: set[str] = set()
    has_died = asyncio.Event()

    async def script(submit: Submit) -> AsyncIterator[list[Event]]:
        name = name_of(submit, *names)
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
    await only_the_poison_failed(sdk, *names)
    assert num_runs["poison"] == max(num_runs.values()) == 2


async def test_a_row_under_which_neurons_die_is_run_three_times_at_most(
    sdk: openai.AsyncOpenAI,
    neuron: FakeNeuron,
    gateway: Gateway,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was run until its batch expired, and ended an instance each time."""
    monkeypatch.setattr(batch_worker, "MOST_PAUSE_S", 0.05)
    num_runs: Counter[str] = Counter()

    async def script(submit: Submit) -> AsyncIterator[list[Event]]:
        name = name_of(submit, "poison", "other")
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
    await only_the_poison_failed(sdk, "poison", "other")
    assert num_runs["poison"] == 3


def fields_of(batch_id: str, names: list[str]) -> dict[str, Any]:
    """Returns the fields of a batch of OpenAI's, whose input, output and errors are the files of
    these names."""
    input_file, output_file, error_file = names
    return {
        "id": batch_id,
        "account": "lab",
        "key": KEY[:13],
        "dialect": "openai",
        "endpoint": CHAT,
        "input_file": input_file,
        "output_file": output_file,
        "error_file": error_file,
    }


async def wake(client: AsgiClient) -> None:
    """Another batch makes the gateway look."""
    unknown = message("wake")
    unknown["params"]["model"] = "unknown"
    body = {"requests": [unknown]}
    assert (await client.post("/v1/messages/batches", body, headers=KEYED)).status == 200


async def batch_once(client: AsgiClient, path: str, holds: Callable[[Any], bool]) -> Any:
    """Polls the batch until ``holds`` of it. Returns it."""

    async def ask() -> Any:
        return (await client.get(path, headers=KEYED)).json

    return await polled(ask, holds)


async def test_batches_of_another_gateway(
    make_client: MakeClient, neuron: FakeNeuron, tmp_path: Path, kept: DatabaseThreads
) -> None:
    files = FileStore(tmp_path / "shared")
    names = ["file-" + digit * 32 for digit in "abc"]
    files.write(names[0], ["\n".join(line(one) for one in "xyz").encode()])
    done = {"custom_id": "x", "response": {"status_code": 200}, "error": None}
    left = files.part(names[1], "dead")
    files.write_at(left, [json.dumps(done).encode() + b'\n{"custom_id": "y", "resp'])
    fields = fields_of("batch_" + "d" * 32, names)

    def left_behind() -> None:
        services.batch_create(lasts=timedelta(hours=1), fields=fields, max_open=9)
        lost = timezone.now() - timedelta(seconds=1)
        Batch.objects.update(status="in_progress", lease_until=lost, lease_holder="dead")

    await kept.query(left_behind)
    client = make_client(data_dir=tmp_path / "other", files_dir=tmp_path / "shared")
    path = f"/v1/batches/{fields['id']}"
    other = await client.post("/v1/files", None, headers=KEYED)
    assert other.status == 400, "a form is wanted"
    await wake(client)
    batch = await batch_once(client, path, lambda answer: answer["status"] == "completed")
    assert batch["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
    ran = [frame.request for frame in neuron.frames if isinstance(frame, Submit)]
    assert len(ran) == 2, "the one that was answered is left alone"
    content = await client.get(f"/v1/files/{names[1]}/content", headers=KEYED)
    assert sorted(json.loads(one)["custom_id"] for one in content.body.splitlines()) == [*"xyz"]
    assert not left.exists(), "what was taken over is deleted"
    strangers = {"authorization": f"Bearer {OTHERS_KEY}"}
    for stranger in (path, f"/v1/files/{names[1]}", f"/v1/files/{names[1]}/content"):
        assert (await client.get(stranger, headers=strangers)).status == 404
    # One whose input was deleted returns the answers so far, and is open no longer.
    files = FileStore(tmp_path / "shared")
    names = ["file-" + digit * 32 for digit in "123"]
    done = {"custom_id": "x", "response": {"status_code": 200}, "error": None}
    files.write_at(files.part(names[1], "dead"), [json.dumps(done).encode() + b"\n"])
    fields = fields_of("batch_" + "4" * 32, names) | {"num_total": 3}
    await kept.query(
        lambda: services.batch_create(lasts=timedelta(hours=1), fields=fields, max_open=9)
    )
    client = make_client(files_dir=tmp_path / "shared")
    await wake(client)
    path = f"/v1/batches/{fields['id']}"
    open_statuses = ("validating", "in_progress")
    batch = await batch_once(client, path, lambda answer: answer["status"] not in open_statuses)
    assert (batch["status"], batch["output_file_id"]) == ("failed", names[1])
    assert batch["errors"]["data"][0]["message"] == "The input file was deleted."
    assert batch["request_counts"] == {"total": 3, "completed": 1, "failed": 0}


async def test_gateways_may_share_a_directory(make_client: MakeClient, tmp_path: Path) -> None:
    shared = {"files_dir": tmp_path / "shared"}
    one, other = (make_client(data_dir=tmp_path / name, **shared) for name in ("a", "b"))
    alone = make_client(data_dir=tmp_path / "c")
    body = {"requests": [message("a")]}
    made = (await one.post("/v1/messages/batches", body, headers=KEYED)).json
    path = f"/v1/messages/batches/{made['id']}"
    await batch_once(other, path, lambda answer: answer["processing_status"] == "ended")
    answer = await other.get(f"{path}/results", headers=KEYED)
    assert json.loads(answer.body)["result"]["type"] == "succeeded"
    # Without a shared directory the answer is an error, not an empty list.
    refused = await alone.get(f"{path}/results", headers=KEYED)
    assert (refused.status, "HELEXA_FILES_DIR" in refused.json["error"]["message"]) == (503, True)
    assert (await other.open("DELETE", path, headers=KEYED).finish()).status == 200
    assert not [*(tmp_path / "shared").iterdir()]
