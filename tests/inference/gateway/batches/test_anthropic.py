"""Anthropic's message batches through the whole gateway, by its SDK."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import anthropic
import pytest
from anthropic.types.messages import MessageBatch

from inference.batches import services
from inference.batches.files import ResultFiles
from tests.inference.gateway.batches_support import message, picky, until_messages_ended
from tests.inference.gateway.fake_neuron import FakeNeuron
from tests.inference.gateway.waiting import PATIENCE_S, until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("kept", "idle_neuron"),
]


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


async def test_an_answer_that_is_written_while_its_batch_is_cancelled_is_reported_once(
    anthropic_sdk: anthropic.AsyncAnthropic, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = anthropic_sdk.messages.batches
    is_writing, may_write, is_seen = threading.Event(), threading.Event(), threading.Event()
    append, progress = ResultFiles.append, services.batch_progress

    def slowly(results: ResultFiles, file_id: str, lines: bytes) -> None:
        is_writing.set()
        may_write.wait(PATIENCE_S)
        append(results, file_id, lines)

    def watched(**values: Any) -> str | None:
        status = progress(**values)
        if status == "cancelling":
            is_seen.set()
        return status

    monkeypatch.setattr(ResultFiles, "append", slowly)
    monkeypatch.setattr(services, "batch_progress", watched)
    made = await batches.create(requests=[message("a")])
    await until(is_writing.is_set)
    await batches.cancel(made.id)
    await until(is_seen.is_set)
    await asyncio.sleep(0.1)  # it is about to report the requests that were not run
    may_write.set()
    ended = await until_messages_ended(anthropic_sdk, made.id)
    assert (ended.request_counts.succeeded, ended.request_counts.canceled) == (1, 0)
    results_by_id = [
        (one.custom_id, one.result.type) async for one in await batches.results(made.id)
    ]
    assert results_by_id == [("a", "succeeded")]
