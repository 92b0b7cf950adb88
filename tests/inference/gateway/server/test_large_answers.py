"""Answers of many megabytes: in bounded pieces, at the pace of their own client."""

from __future__ import annotations

import asyncio
import base64
import math
import struct
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from inference.gateway.consumers import generate as generation
from inference.gateway.request import event_stream as streams
from inference.gateway.server import bodies
from inference.gateway.server.bodies import PIECE_BYTES
from inference.neuron.requests.batches import batches_within
from inference.protocol.events import (
    MAX_BATCH_BYTES,
    ChoiceFinished,
    Delta,
    Embedded,
    Event,
    Finished,
    TextLogprob,
    Tokenized,
    Usage,
)
from inference.protocol.generation import Submit
from inference.wire.common import fields
from inference.wire.common.fields import read_json_object
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.bodies import chat_body
from tests.inference.gateway.fake_neuron import ACCEPTED, FakeNeuron, Script, paris, saying
from tests.inference.gateway.fake_neuron import embeds as embeds_whole

NUM_INPUTS = 256
WIDTH = 1024
VECTORS = [struct.pack(f"<{WIDTH}f", *(n + i / 7 for i in range(WIDTH))) for n in range(NUM_INPUTS)]
ASK = {"model": "tiny", "input": ["x"] * NUM_INPUTS, "encoding_format": "base64"}
USAGE = Usage(prompt_tokens=NUM_INPUTS, completion_tokens=0)
CHAT = chat_body()


ANSWERED = Embedded(request_id="", vectors=VECTORS, usage=USAGE)
embeds = saying([ACCEPTED], *batches_within(MAX_BATCH_BYTES - 4096, [ANSWERED]))
"""Embeds as a neuron sends it."""


def _vectors(answer: Any) -> list[bytes]:
    assert [one["index"] for one in answer["data"]] == list(range(NUM_INPUTS))
    return [base64.b64decode(one["embedding"]) for one in answer["data"]]


async def test_embeddings_come_in_bounded_pieces(client: AsgiClient, neuron: FakeNeuron) -> None:
    neuron.script = embeds
    answers = await asyncio.gather(*(client.post("/v1/embeddings", ASK) for _ in range(4)))
    for answer in answers:
        assert answer.status == 200
        assert int(answer.headers["content-length"]) == len(answer.body)
        assert _vectors(answer.json) == VECTORS
        assert answer.json["usage"]["total_tokens"] == NUM_INPUTS
        assert max(answer.piece_sizes) <= PIECE_BYTES
        assert len(answer.piece_sizes) > 20
    answer = await client.post("/api/embed", {"model": "tiny", "input": ["x"] * NUM_INPUTS})
    vector = struct.unpack(f"<{WIDTH}f", VECTORS[7])
    length = math.hypot(*vector)
    assert answer.json["embeddings"][7] == pytest.approx([each / length for each in vector])
    assert answer.json["prompt_eval_count"] == len(answer.json["embeddings"]) == NUM_INPUTS
    assert max(answer.piece_sizes) <= PIECE_BYTES
    neuron.script = embeds_whole(VECTORS[0])
    small = await client.post("/v1/embeddings", {"model": "tiny", "input": "x"})
    assert small.piece_sizes == [int(small.headers["content-length"])] == [len(small.body)]


async def test_a_client_that_reads_slowly_holds_up_itself_alone(
    client: AsgiClient, neuron: FakeNeuron
) -> None:
    neuron.script = embeds
    slow = client.open("POST", "/v1/embeddings", ASK)
    slow.reads.clear()
    fast = await client.post("/v1/embeddings", ASK)
    neuron.script = paris
    assert _vectors(fast.json) == VECTORS
    assert (await client.post("/v1/chat/completions", CHAT)).status == 200
    assert slow.body == b"" and slow.status == 200
    slow.reads.set()
    await slow.finish()
    assert _vectors(slow.json) == VECTORS


async def test_an_answer_of_which_a_batch_is_lost_is_refused(
    client: AsgiClient, neuron: FakeNeuron
) -> None:
    async def breaks(submit: Submit) -> AsyncIterator[list[Event]]:
        async for events in embeds(submit):
            if isinstance(events[-1], Embedded):
                neuron.sequence_numbers[submit.gateway_id] += 1
            yield events

    neuron.script = breaks
    answer = await client.post("/v1/embeddings", ASK)
    assert (answer.status, answer.error["code"]) == (503, "events_lost")


async def test_an_event_in_fragments_is_one_event(client: AsgiClient, neuron: FakeNeuron) -> None:
    token_ids = list(range(100_000, 250_000))

    async def tokenizes(submit: Submit) -> AsyncIterator[list[Event]]:
        tokenized = Tokenized(request_id=submit.request_id, token_ids=token_ids, context_tokens=9)
        for batch in batches_within(MAX_BATCH_BYTES - 4096, [tokenized]):
            yield batch

    neuron.script = tokenizes
    answer = await client.post("/tokenize", {"model": "tiny", "prompt": "x"})
    assert answer.json["tokens"] == token_ids
    assert max(answer.piece_sizes) <= PIECE_BYTES


def choosing(num_choices: int, *steps: list[Event]) -> Script:
    """Answers with these events of as many choices."""
    ends = [
        ChoiceFinished(request_id="", index=index, reason="length") for index in range(num_choices)
    ]
    return saying([ACCEPTED], *steps, [*ends, Finished(request_id="", usage=USAGE)])


async def test_many_choices_with_logprobs_come_in_bounded_pieces(
    client: AsgiClient, neuron: FakeNeuron
) -> None:
    top = [("a", b"a", -2.0)] * 20
    entry = TextLogprob(token="é", token_bytes="é".encode(), logprob=-0.5, top=top)
    steps: list[list[Event]] = [
        [Delta(request_id="", index=index, text="é", logprobs=[entry])] * 50
        for index in range(4)
        for _ in range(10)
    ]
    neuron.script = choosing(4, *steps)
    ask = CHAT | {"n": 4, "logprobs": True, "top_logprobs": 20}
    answer = await client.post("/v1/chat/completions", ask)
    assert int(answer.headers["content-length"]) == len(answer.body)
    assert max(answer.piece_sizes) <= PIECE_BYTES
    for choice in answer.json["choices"]:
        assert choice["message"]["content"] == "é" * 500
        assert len(choice["logprobs"]["content"]) == 500
        assert len(choice["logprobs"]["content"][-1]["top_logprobs"]) == 20


bursts = choosing(128, *[[Delta(request_id="", index=i % 128, text="x") for i in range(1024)]] * 20)
"""Sends as many events as a stall of seconds leaves of 128 choices, as fast as they can be read."""


async def test_many_choices_in_bursts(
    client: AsgiClient, neuron: FakeNeuron, monkeypatch: pytest.MonkeyPatch
) -> None:
    neuron.script = bursts
    ask = {"model": "tiny", "prompt": "x", "n": 128, "max_tokens": 160}
    for stream in (False, True):
        answer = await client.post("/v1/completions", ask | {"stream": stream})
        bodies = answer.chunks[:-1] if stream else [answer.json]
        texts = [choice["text"] for body in bodies for choice in body["choices"]]
        assert (answer.status, len("".join(texts))) == (200, 20 * 1024)
    monkeypatch.setattr(streams, "MAX_QUEUED_EVENTS", 100)
    behind = await client.post("/v1/completions", ask)
    assert (behind.status, behind.error["code"]) == (503, "client_too_slow")


@each_case("is_large", [False, True])
async def test_large_bodies_are_parsed_beside_the_loop(
    client: AsgiClient, neuron: FakeNeuron, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    threads: list[threading.Thread] = []

    def read(body: bytes) -> Any:
        threads.append(threading.current_thread())
        return read_json_object(body)

    monkeypatch.setattr(fields, "read_json_object", read)
    monkeypatch.setattr(bodies, "LARGE_BODY_BYTES", 1000)
    text = "x" * (2000 if is_large else 20)
    ask = CHAT | {"messages": [{"role": "user", "content": text}]}
    assert (await client.post("/v1/chat/completions", ask)).status == 200
    assert [thread is threading.main_thread() for thread in threads] == [not is_large]


async def test_other_tasks_run_between_the_frames_that_end_an_item() -> None:
    """Each of the three holds all log probabilities of the answer."""
    num_turns: list[int] = []
    large = b"b" * (generation.LARGE_PART_BYTES + 1)

    class Encoder:
        def encode(self, event: Event) -> bytes:
            return b"a"

        def parts(self, event: Event) -> Iterator[bytes]:
            for _ in range(3):
                num_turns.append(ticks)
                yield large

    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    try:
        end = ChoiceFinished(request_id="r", reason="stop")
        events: list[Event] = [Delta(request_id="r", text="x"), end]
        assert await generation.encoded(Encoder(), events) == [b"a", large, large, large]
    finally:
        ticking.cancel()
    assert len(set(num_turns)) == 3
