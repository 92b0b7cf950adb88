"""Every message of a neuron with every field wrong: its request ends, once, and nothing else does.

Each case is one event, with one field set to one value, in each place of an answer to each kind of
request. A case that is no fault ends like any answer.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import redis.asyncio

from fleet.live.reports import MAX_CONTEXT_TOKENS
from inference.gateway.gateway import Gateway
from inference.gateway.request.answer_check import AnswerCheck, AnswerFaultError
from inference.gateway.request.tokens import DEFAULT_OUTPUT_TOKENS
from inference.protocol import events
from inference.protocol.engine import SequenceTiming
from inference.protocol.generation import GenerationRequest, SamplingOptions, Submit, TextInput
from tests.fleet.conftest import report
from tests.hostile.conftest import EVIL
from tests.hostile.wrong import wrong
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import ENTRY, FakeCatalogue
from tests.inference.gateway.fake_metering import FakeLedger
from tests.inference.gateway.fake_neuron import ACCEPTED, FakeNeuron, Script, paris, saying

pytestmark = pytest.mark.slow

GENEROUS_S = 60.0
PLAIN = {"messages": [{"role": "user", "content": "Hi"}]}
SHORT = {**PLAIN, "max_tokens": 50}
SCORED = {"prompt": "Hi", "max_tokens": 50, "logprobs": 1, "echo": True, "prompt_logprobs": 1}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {**SHORT, "n": 2}),
    "stream": (
        "/v1/chat/completions",
        {**SHORT, "logprobs": True, "top_logprobs": 1, "stream": True},
    ),
    "completion": ("/v1/completions", {**SCORED, "return_token_ids": True}),
    "message": ("/v1/messages", SHORT),
    "response": ("/v1/responses", {"input": "Hi", "max_output_tokens": 50, "store": False}),
    "embedding": ("/v1/embeddings", {"input": ["a", "b"]}),
    "score": ("/v1/score", {"text_1": "a", "text_2": ["b", "c"]}),
    "tokenize": ("/tokenize", {"prompt": "Hi"}),
    "count": ("/v1/messages/count_tokens", PLAIN),
}
MAX_TOKENS = 200
"""The bound on each answer, more than any of them may use in all its choices."""

USAGE = events.Usage(prompt_tokens=7, completion_tokens=3)
LOGPROB = events.TextLogprob(token="a", token_bytes=b"a", logprob=-0.5)
SAMPLING = events.UsedSampling(
    temperature=1.0, top_p=1.0, presence_penalty=0.0, frequency_penalty=0.0
)
TIMING = SequenceTiming(prefill_ms=1.0, decode_ms=1.0, prefill_tokens=1)
VECTOR = np.ones(4, dtype="<f4").tobytes()
SOUND: tuple[Any, ...] = (
    events.Accepted(request_id="", prompt_tokens=7, sampling=SAMPLING, prompt_token_ids=[[1]]),
    events.PromptScored(
        request_id="", tokens=[[events.RankedToken(token_id=1, text="a", logprob=-0.5, rank=1)]]
    ),
    events.Delta(request_id="", text="a", logprobs=[LOGPROB]),
    events.OutputTokens(request_id="", token_ids=[1]),
    events.ReasoningDelta(request_id="", text="a", opens="<think>"),
    events.ToolCallStarted(request_id="", call_id="c", name="f"),
    events.ToolCallDelta(request_id="", arguments="{}"),
    events.ChoiceFinished(request_id="", reason="stop"),
    events.Finished(request_id="", usage=USAGE, timing=TIMING),
    events.EmbeddedPart(request_id="", vectors=[VECTOR]),
    events.Embedded(request_id="", vectors=[VECTOR, VECTOR], usage=USAGE),
    events.TokensCounted(request_id="", prompt_tokens=7),
    events.Tokenized(request_id="", token_ids=[1], context_tokens=8),
    events.Failed(
        request_id="", failure=events.Failure(code="engine_error", message="m", retry_after_s=1.0)
    ),
    events.Cancelled(request_id="", usage=USAGE),
    events.Fragment(request_id="", data=b"\xc1", is_last=True),
    events.Traced(request_id="", text="the prompt"),
    events.StageTimes(request_id="", total_ms=2.0, prepare_ms=1.0),
)


def cases() -> dict[str, events.Event]:
    """Every event as it should be, for it may be out of place, and with each thing wrong."""
    found: dict[str, events.Event] = {}
    for event in SOUND:
        name = type(event).__name__
        found[f"{name} as it should be"] = event
        others = (each for each in wrong(event, type(event)) if not each.request_id)
        for number, other in enumerate(others):
            found[f"{name} {number}"] = other
    return found


CASES = cases()
BEFORE: tuple[list[events.Event], ...] = (
    [],
    [ACCEPTED],
    [ACCEPTED, events.Delta(request_id="", text="a")],
)
"""What comes before it."""


def test_every_kind_of_event_is_tried() -> None:
    kinds = {type(event) for event in CASES.values()}
    assert kinds == set(events.Event.__args__)
    assert sum(map(decodes, CASES.values())) > 200


def decodes(event: events.Event) -> bool:
    """What cannot be written as a message, or is refused where it is read, is tried elsewhere."""
    try:
        events.decode_event(events.encode_event(event))
    except (msgspec.MsgspecError, OverflowError):
        return False
    return True


async def answer_to(client: AsgiClient, kind: str) -> tuple[int, bytes]:
    path, body = REQUESTS[kind]
    answer = await asyncio.wait_for(client.post(path, {"model": "tiny", **body}), GENEROUS_S)
    return answer.status, answer.body


def sending(sent: list[events.Event]) -> Script:
    return saying(sent, [events.Cancelled(request_id="")])


@pytest.mark.parametrize("kind", REQUESTS)
async def test_a_wrong_message_ends_its_request(
    client: AsgiClient,
    gateway: Gateway,
    neuron: FakeNeuron,
    ledger: FakeLedger,
    catalogue: FakeCatalogue,
    kind: str,
) -> None:
    neuron.capabilities = ["chat", "completions", "logprobs", "embeddings", "rerank"]
    await neuron.beat()
    for name, event in CASES.items():
        if not decodes(event):
            continue
        await neuron.beat()  # on a slow machine all cases take longer than one heartbeat lasts
        for before in BEFORE if kind == "chat" else BEFORE[1:2]:
            neuron.script = sending([*before, event])
            status, body = await answer_to(client, kind)
            assert status in (200, 400, 422, 429, 500, 502, 503), (name, body[:300])
            # Only a neuron that reports a failure makes an error of the server's own.
            is_broken = status == 500 or b"internal_error" in body
            assert not is_broken or isinstance(event, events.Failed), (name, body[:300])
    neuron.script = paris
    status, body = await answer_to(client, "stream")
    assert status == 200 and b"Pari" in body
    await asyncio.sleep(0)
    for settle in ledger.settled:
        assert 0 <= settle.cached_tokens <= settle.prompt_tokens <= 10**7
        assert 0 <= settle.reasoning_tokens <= settle.completion_tokens <= MAX_TOKENS
    assert {name for name, _ in catalogue.cut_off} == {neuron.name}


HUGE = events.Usage(prompt_tokens=2**63 - 1, completion_tokens=2**63 - 1)
STOPPED = events.ChoiceFinished(request_id="", reason="stop")
LATE = events.Failure(code="queue_full", message="m", retry_after_s=math.nan)
IMPROBABLE = msgspec.structs.replace(LOGPROB, logprob=1e300)
RANKED = events.RankedToken(token_id=1, text="a", logprob=-0.5, rank=-1)
PIECE = events.Fragment(request_id="", data=b"x" * 200_000)
FAULTS: dict[str, list[events.Event]] = {
    "a choice that was not asked for": [events.Delta(request_id="", text="a", index=10**6)],
    "no choice has finished": [events.Finished(request_id="", usage=USAGE)],
    "more tokens than any": [STOPPED, events.Finished(request_id="", usage=HUGE)],
    "fewer than none": [events.Accepted(request_id="", prompt_tokens=-(10**9))],
    "a prompt longer than its text": [events.Accepted(request_id="", prompt_tokens=10**6)],
    "no time": [events.Failed(request_id="", failure=LATE)],
    "no probability": [events.Delta(request_id="", text="a", logprobs=[IMPROBABLE])],
    "no rank": [events.PromptScored(request_id="", tokens=[[RANKED]])],
    "another kind": [events.Embedded(request_id="", vectors=[VECTOR], usage=USAGE)],
    # 64 MiB were kept of a request for one token until the last fragment came.
    "fragments of an event that is not whole": [PIECE] * 20,
}


async def test_what_breaks_a_bound(
    client: AsgiClient, neuron: FakeNeuron, ledger: FakeLedger
) -> None:
    for fault, sent in FAULTS.items():
        begun = [] if isinstance(sent[0], events.Accepted) else [ACCEPTED]
        await neuron.beat()
        neuron.script = sending([*begun, *sent])
        body = {"model": "tiny", **PLAIN} | ({"max_tokens": 1} if PIECE in sent else {})
        answer = await asyncio.wait_for(client.post("/v1/chat/completions", body), GENEROUS_S)
        assert (answer.status, answer.json["error"]["code"]) == (503, "neuron_fault"), fault
    assert all(settle.completion_tokens == 0 for settle in ledger.settled)


async def test_a_neighbours_epoch_and_requests_are_of_no_use(
    client: AsgiClient,
    gateway: Gateway,
    neuron: FakeNeuron,
    ledger: FakeLedger,
    redis_client: redis.asyncio.Redis,
) -> None:
    """The neighbour's epoch stands in the host's own stream: a gap of 10^9 batches, text for the
    neighbour's request, and its end with another usage."""
    evil = FakeNeuron(redis_client, name=EVIL)
    evil.epoch = neuron.epoch
    evil.sequence_numbers[gateway.gateway_id] = 10**9

    async def attacked(submit: Submit) -> AsyncIterator[list[events.Event]]:
        id = submit.request_id
        usage = events.Usage(prompt_tokens=7, completion_tokens=123_456)
        await gateway.readers.ensure(EVIL)
        begun_s = asyncio.get_running_loop().time()
        await evil.send(submit.gateway_id, [])
        await evil.send(submit.gateway_id, [events.Delta(request_id=id, text="forged")])
        await evil.send(submit.gateway_id, [events.Finished(request_id=id, usage=usage)])
        while gateway.readers.caught_up_s(EVIL) <= begun_s:
            await asyncio.sleep(0.01)
        async for honest in paris(submit):
            yield honest

    neuron.script = attacked
    for _ in range(2):
        status, body = await answer_to(client, "stream")
        assert status == 200 and b"Pari" in body and b"forged" not in body
    assert {settle.completion_tokens for settle in ledger.settled} == {5}


@pytest.mark.parametrize(
    ("max_context_tokens", "most"),
    [(1000, 1000), (None, DEFAULT_OUTPUT_TOKENS)],
    ids=["bounded by the catalogue", "bounded by nothing"],
)
async def test_a_claimed_context_makes_no_answer_longer(
    client: AsgiClient,
    neuron: FakeNeuron,
    catalogue: FakeCatalogue,
    max_context_tokens: int | None,
    most: int,
) -> None:
    """Where the client names no length and no cap applies, 2^24 tokens were its bound."""
    catalogue.listed = [replace(ENTRY, max_context_tokens=max_context_tokens)]
    neuron.report = report(context_tokens=MAX_CONTEXT_TOKENS)
    await neuron.beat()
    last = events.ChoiceFinished(request_id="", reason="length", num_tokens=1)
    for num_tokens, status in ((most, 200), (most + 1, 503)):
        text = events.Delta(request_id="", text="a", num_tokens=num_tokens)
        neuron.script = sending([ACCEPTED, text, last, events.Finished(request_id="", usage=USAGE)])
        answer = await client.post("/v1/chat/completions", {"model": "tiny", **PLAIN})
        assert answer.status == status, answer.body
        assert (await neuron.submitted.get()).cap_output_tokens == most
    assert answer.json["error"]["code"] == "neuron_fault"


def test_an_answer_has_no_more_bytes_than_its_tokens_can_have() -> None:
    """Text without a token filled the memory of a gateway that folds it into one body."""
    request = GenerationRequest(
        model="tiny", input=TextInput(texts=["Hi"]), sampling=SamplingOptions(max_tokens=50)
    )
    check = AnswerCheck(request, events.Usage(prompt_tokens=7, completion_tokens=50))
    check.check(events.Accepted(request_id="", prompt_tokens=7), 50)
    with pytest.raises(AnswerFaultError, match="more bytes"):
        for _ in range(100):
            check.check(events.Delta(request_id="", text="a", num_tokens=0), 1_000_000)
