"""Limits per minute and at once, as a client meets them; a request that no engine has accepted is
retried on another replica, within bounds, and an accepted one never."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from fleet.placement.targets import MAX_ATTEMPTS, may_place_again
from inference.gateway.request import place as placing
from inference.gateway.request.admission import with_sampling_defaults
from inference.protocol.events import Event
from inference.protocol.generation import (
    EmbeddingRequest,
    GenerationRequest,
    SamplingOptions,
    Submit,
    TextInput,
    TokensInput,
)
from inference.protocol.keys import heartbeat_key, preparing_key
from metering.principal import RateLimits
from tests.cases import each_case
from tests.inference.gateway.asgi_client import Exchange
from tests.inference.gateway.bodies import gated
from tests.inference.gateway.conftest import BEARER, CHAT, SHORT_CHAT, MakeClient, Rig
from tests.inference.gateway.fake_metering import KEY, FakeDirectory
from tests.inference.gateway.fake_neuron import (
    FakeNeuron,
    Script,
    breaking,
    counting,
    paris,
    silent,
)


def limit(rig: Rig, **limits: int) -> None:
    rig.directory.restrict(KEY, key_limits=RateLimits(**limits))


async def test_a_request_too_many_loads_nothing(rig: Rig, neuron: FakeNeuron) -> None:
    limit(rig, requests_per_minute=2, tokens_per_minute=5000)
    answer = await rig.ask(max_tokens=5)
    assert answer.headers["x-ratelimit-limit-requests"] == "2"
    assert answer.headers["x-ratelimit-remaining-requests"] == "1"
    assert 4800 < int(answer.headers["x-ratelimit-remaining-tokens"]) < 5000
    body = {**SHORT_CHAT, "max_tokens": 5}
    messages = await rig.client.post("/v1/messages", body, headers=BEARER)
    assert messages.headers["anthropic-ratelimit-requests-remaining"] == "0"
    assert not [name for name in messages.headers if name.startswith("x-ratelimit")]
    neuron.status = None
    await neuron.beat()
    refused = await rig.ask()
    assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
    assert refused.error["type"] == "requests"
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert rig.catalogue.loads == []
    small = RateLimits(tokens_per_minute=10)
    rig.directory.restrict(KEY, key_limits=RateLimits(), account_limits=small)
    refused = await rig.ask()
    assert (refused.status, refused.error["type"]) == (429, "tokens")
    assert "retry-after" not in refused.headers, "the prompt never fits"
    assert refused.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.parametrize("limits", [{"tokens_per_minute": 10_000}, {"max_concurrent": 2}], ids=str)
async def test_running_answers_count_before_they_have_ended(
    rig: Rig, neuron: FakeNeuron, limits: dict[str, int], leaves: bool
) -> None:
    """A hundred short prompts of 4,800-token answers at once: two of them fit into a minute of
    10,000 tokens, and for half of one no third. What they do not use is free for others when they
    have ended."""
    gate = asyncio.Event()
    rig.directory.restrict(KEY, key_limits=RateLimits(**limits))
    neuron.script = gated(gate)
    running = [rig.open(max_tokens=4800, stream=True) for _ in range(2)]
    for exchange in running:
        await exchange.until(b"Pa")
    refusals = await asyncio.gather(*(rig.ask(max_tokens=4800) for _ in range(98)))
    assert {answer.status for answer in refusals} == {429}
    assert {answer.error["code"] for answer in refusals} == {"rate_limit_exceeded"}
    assert neuron.submitted.qsize() == 2
    for exchange in running:
        if leaves:
            exchange.leave()
    gate.set()
    for exchange in running:
        assert (await exchange.finish()).status == 200
    async with asyncio.timeout(60):
        while (await rig.ask(max_tokens=4800)).status == 429:
            await asyncio.sleep(0.02)


async def test_a_prompt_longer_than_charged(rig: Rig, neuron: FakeNeuron) -> None:
    limit(rig, tokens_per_minute=300)
    neuron.script = counting(250)
    answer = await rig.ask(max_tokens=80)
    first = await neuron.submitted.get()
    assert first.max_prompt_tokens is not None and first.max_prompt_tokens < 200
    assert (answer.status, answer.error["code"]) == (429, "rate_limit_exceeded")
    assert neuron.submitted.empty()
    neuron.script = counting(200)
    assert (await rig.ask(max_tokens=80)).status == 200
    assert (await neuron.submitted.get()).max_prompt_tokens == first.max_prompt_tokens
    assert (await neuron.submitted.get()).max_prompt_tokens == 200


async def test_without_redis(make_client: MakeClient, directory: FakeDirectory) -> None:
    directory.restrict(KEY, key_limits=RateLimits(requests_per_minute=3))
    client = make_client(redis_url="unix:///nowhere.sock")
    refused = await client.post(CHAT, SHORT_CHAT, headers=BEARER)
    assert (refused.status, refused.error["code"]) == (503, "redis_unavailable")


def test_the_request_then_the_operator() -> None:
    asked = SamplingOptions(temperature=0.0, presence_penalty=0.5)
    request = GenerationRequest(model="m", input=TokensInput(prompts=[[1]]), sampling=asked)
    defaults = {"temperature": 0.9, "top_k": 5, "repetition_penalty": 1.1, "repetition_window": 64}
    filled = with_sampling_defaults(request, defaults).sampling  # type: ignore[union-attr]
    assert filled == msgspec.structs.replace(asked, **defaults | {"temperature": 0.0})
    vectors = EmbeddingRequest(model="m", input=TextInput(texts=["a"]))
    assert with_sampling_defaults(vectors, defaults) is vectors


MARKS = preparing_key("beast")


@pytest.fixture(autouse=True)
def _quick_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "REFUSED_S", 0.01)


def test_what_is_retried() -> None:
    final = ("request_lost", "events_lost", "context_length_exceeded", "queue_full")
    for again, num_attempts, is_accepted, codes in (
        (True, 1, False, ("neuron_lost", "model_not_loaded", "draining")),
        (True, 2, False, ("neuron_stopping",)),
        (False, 1, True, ("neuron_lost",)),
        (False, MAX_ATTEMPTS, False, ("recovering",)),
        (False, 1, False, (*final, "engine_crashed")),
    ):
        for code in codes:
            found = may_place_again(code, is_accepted=is_accepted, num_attempts=num_attempts)
            assert found is again, code


@each_case(
    ("script", "times", "num_attempts", "code"),
    [
        (breaking("model_not_loaded"), 2, 3, None),
        (breaking("draining"), 99, MAX_ATTEMPTS, "draining"),
        (breaking("recovering", accepts=True), 99, 1, "recovering"),
    ],
    ids=["a replica that is gone", "bounded", "an engine took it"],
)
async def test_attempts(
    rig: Rig, neuron: FakeNeuron, script: Script, times: int, num_attempts: int, code: str | None
) -> None:
    attempts: list[str] = []

    async def refusing(submit: Submit) -> AsyncIterator[list[Event]]:
        attempts.append(submit.request_id)
        async for events in (script if len(attempts) <= times else paris)(submit):
            yield events

    neuron.script = refusing
    answer = await rig.ask()
    assert answer.status == (503 if code else 200)
    assert code is None or answer.error["code"] == code
    assert len(attempts) == len(set(attempts)) == num_attempts


async def submitted(rig: Rig, neuron: FakeNeuron) -> tuple[Exchange, Submit]:
    """A request that its neuron has, and does not answer."""
    neuron.script = silent
    exchange = rig.open()
    return exchange, await asyncio.wait_for(neuron.submitted.get(), 60)


async def restart(neuron: FakeNeuron, *prepared: str) -> None:
    """It died while it prepared those requests, and comes back."""
    if prepared:
        await neuron.client.hset(MARKS, mapping=dict.fromkeys(prepared, neuron.epoch))
    neuron.epoch = f"after {neuron.epoch}"
    neuron.sequence_numbers.clear()
    await neuron.beat()


@each_case("returns", [True, False])
async def test_what_killed_alone_goes_nowhere(rig: Rig, neuron: FakeNeuron, returns: bool) -> None:
    exchange, submit = await submitted(rig, neuron)
    if returns:  # it was one of several, and is delivered once more
        await restart(neuron, submit.request_id, "somebody else's")
        second = await asyncio.wait_for(neuron.submitted.get(), 60)
        assert (submit.num_worker_deaths, second.num_worker_deaths) == (0, 1)
        await restart(neuron, second.request_id)
    else:
        await neuron.client.hset(MARKS, submit.request_id, neuron.epoch)
        await neuron.client.delete(heartbeat_key("beast"))
    await exchange.finish()
    assert (exchange.status, exchange.error["code"]) == (500, "request_broke_worker")
    assert exchange.headers["x-should-retry"] == "false"
    assert "retry-after" not in exchange.headers
    assert neuron.submitted.empty()
    await neuron.beat()


@each_case("marks_without_bound", [False, True])
async def test_what_only_waited(rig: Rig, neuron: FakeNeuron, marks_without_bound: bool) -> None:
    """A neuron that marks without bound is not believed."""
    exchange, submit = await submitted(rig, neuron)
    neuron.script = paris
    if marks_without_bound:
        await neuron.client.hset(MARKS, "huge", "x" * 2_000_000)
    await restart(neuron, submit.request_id if marks_without_bound else "somebody else's")
    answer = await exchange.finish()
    assert answer.json["choices"][0]["message"]["content"] == "The capital is Paris."
    second = await asyncio.wait_for(neuron.submitted.get(), 60)
    assert second.num_worker_deaths == 0
    assert submit.request_id == answer.headers["x-request-id"]
    assert second.request_id == f"{submit.request_id}.2"
    assert rig.ledger.settled[-1].request_id == submit.request_id
    assert [begun.request_id for begun in rig.ledger.begun[-2:]] == 2 * [submit.request_id]
    assert await asyncio.wait_for(neuron.cancelled.get(), 60) == submit.request_id
    await neuron.client.delete(MARKS)
