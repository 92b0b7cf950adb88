"""Requests through a whole neuron but for Celery: real Redis, real engine processes that speak the
real channel."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from inference.protocol.events import Accepted, Cancelled, Delta, Finished
from inference.protocol.generation import GenerationRequest, OutputFormat, TextInput, TokensInput
from inference.protocol.held import NO_GATEWAY, HeldRequests, decode_held_requests
from inference.protocol.keys import INBOX_FRAME_FIELD, gateway_alive_key, held_key, inbox_key
from inference.protocol.sampling import SamplingOptions
from tests.inference.neuron.conftest import TestNeuron, failure_of, wait_until

TEXT = "The capital of France is Paris."


def request(text: str = TEXT, **fields: Any) -> GenerationRequest:
    return GenerationRequest(model="m", **({"input": TextInput(texts=[text])} | fields))


def _text(events: list[Any]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


def test_a_request_is_accepted_streamed_and_finished(loaded: TestNeuron, gateway: Any) -> None:
    events = loaded.ask(TEXT, max_tokens=200)
    accepted, finished = events[0], events[-1]
    assert isinstance(accepted, Accepted)
    assert isinstance(finished, Finished)
    assert events[-2].reason == "length"
    assert finished.usage.completion_tokens == 200
    assert finished.usage.prompt_tokens == accepted.prompt_tokens
    assert _text(events).startswith(TEXT + TEXT)
    assert [batch.sequence_number for batch in gateway.batches] == list(range(len(gateway.batches)))
    assert {batch.epoch for batch in gateway.batches} == {loaded.service.epoch}


def test_a_lost_doorbell_is_made_good_by_the_heartbeat(loaded: TestNeuron, gateway: Any) -> None:
    assert isinstance(gateway.wait_end(gateway.submit(max_tokens=1))[-1], Finished)


def test_a_stop_string_ends_the_answer_and_frees_the_engine(
    loaded: TestNeuron, gateway: Any
) -> None:
    events = loaded.ask(request=request(stop=["France"]))
    assert _text(events) == "The capital of "
    assert (events[-2].reason, events[-2].stop_sequence) == ("stop", "France")
    wait_until(gateway.is_idle)
    assert sum(isinstance(event, Finished) for event in gateway.events(events[0].request_id)) == 1


def test_echo_and_logprobs(loaded: TestNeuron) -> None:
    sampling = SamplingOptions(max_tokens=1, top_logprobs=1)
    events = loaded.ask(request=request(sampling=sampling, echo=True))
    assert _text(events) == TEXT + "The"
    first_of_prompt, logprob = events[1].logprobs
    assert first_of_prompt.logprob is None
    assert (logprob.token, logprob.token_bytes, logprob.logprob) == ("The", b"The", -0.5)
    assert logprob.top == [("The", b"The", -0.5)]


def test_cancel_reaches_a_running_request(loaded: TestNeuron) -> None:
    events = loaded.end(loaded.running())
    assert isinstance(events[-1], Cancelled)
    assert sum(isinstance(event, Cancelled) for event in events) == 1


def test_cancel_in_the_same_drain_as_its_submit(loaded: TestNeuron, gateway: Any) -> None:
    request_ids = [gateway.submit() for _ in range(20)]
    for request_id in request_ids:
        gateway.cancel(request_id)
    loaded.service.drain_inbox()
    for request_id in request_ids:
        assert isinstance(gateway.wait_end(request_id)[-1], Cancelled)
    wait_until(lambda: gateway.is_idle(after_steps=False))


def test_a_sequence_that_never_stepped_is_cancelled_or_unloaded_at_once(
    neuron: TestNeuron, gateway: Any
) -> None:
    """Queued or prefilling: the engine has it and has sent nothing about it."""
    neuron.load(rate=0)
    cancelled, unloaded = neuron.submit(), neuron.submit()
    for request_id in (cancelled, unloaded):
        gateway.wait_events(request_id, bool)
    assert isinstance(neuron.end(cancelled)[-1], Cancelled)
    neuron.service.unload_model("m")
    gateway.wait_status("draining")
    assert len(gateway.events(unloaded)) == 1, "it is waited for"
    neuron.service.unload_model("m", True)
    failure = failure_of(gateway.wait_end(unloaded))
    assert failure.code == "draining" and "unloaded" in failure.message
    assert failure.retry_after_s is not None


def test_refusals_before_the_engine_and_by_it(loaded: TestNeuron, gateway: Any) -> None:
    gateway.client.xadd(inbox_key("n1"), {INBOX_FRAME_FIELD: b"\xff\xff"})
    gateway.client.xadd(inbox_key("n1"), {b"other": b"field"})
    bad_format = OutputFormat(path="response_format", schema={"not": {}})
    refused: list[tuple[str, dict[str, Any]]] = [
        ("queue_timeout", {"deadline_s": -1.0}),
        ("model_not_loaded", {"model": "nobody"}),
        ("queue_full", {"seed": 666}),
        ("invalid_value", {"request": request(stop=[""])}),
        ("bad_token_id", {"request": request(input=TokensInput(prompts=[[10_000]]))}),
        ("context_length_exceeded", {"request": request(input=TokensInput(prompts=[[5] * 1000]))}),
        ("invalid_schema", {"request": request(output_format=bad_format)}),
    ]
    for code, asked in refused:
        failure = failure_of(loaded.ask(**asked))
        assert failure.code == code
    assert failure.param == "response_format.not"
    assert loaded.answers(), "nor has garbage in the inbox harmed anybody"


@pytest.mark.slow
def test_requests_of_a_dead_gateway_are_dropped(
    loaded: TestNeuron, gateway: Any, redis_db: redis.Redis
) -> None:
    loaded.running()
    redis_db.delete(gateway_alive_key("gw"))
    wait_until(gateway.is_idle)
    assert redis_db.ttl("helexa:neuron:n1:events:gw") > 0


@pytest.mark.slow
def test_it_lists_the_requests_that_it_holds(
    loaded: TestNeuron, gateway: Any, redis_db: redis.Redis
) -> None:
    def held(gateway_id: str) -> HeldRequests | None:
        fields = redis_db.hgetall(held_key("n1"))
        data = fields.get(gateway_id.encode(), fields.get(NO_GATEWAY.encode()))
        return decode_held_requests(data) if data else None

    def ids() -> list[str]:
        listed = held("gw")
        return listed.request_ids if listed else ["no report"]

    request_id = gateway.submit()
    wait_until(lambda: ids() == [request_id])
    listed, of_others = held("gw"), held("another")
    assert listed is not None and of_others is not None
    assert (listed.epoch, of_others.request_ids) == (loaded.service.epoch, [])
    assert redis_db.ttl(held_key("n1")) > 0
    gateway.cancel(request_id)
    wait_until(lambda: ids() == [])
    assert held("gw").beat > listed.beat
