"""Batches whose rows end engines or neurons, and a disk that is full."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator

import openai
import pytest
from msgspec import to_builtins

from inference.batches import services
from inference.batches.files import ResultFiles
from inference.gateway.batches import run as batch_run
from inference.gateway.batches import worker as batch_worker
from inference.gateway.gateway import Gateway
from inference.protocol.events import Accepted, Event, Failed, Failure
from inference.protocol.generation import Submit
from tests.inference.gateway.batches.running import begin, counts, line, results, until_ended
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


async def test_a_row_that_ends_engines_is_run_twice_and_its_neighbours_are_answered(
    sdk: openai.AsyncOpenAI, neuron: FakeNeuron
) -> None:
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
    monkeypatch.setattr(batch_run, "MOST_PAUSE_S", 0.05)
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
