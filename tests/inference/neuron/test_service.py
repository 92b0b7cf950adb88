"""Requests through a whole neuron but for Celery: real Redis, real engine processes that speak the
real channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from inference.neuron.service import NeuronService
from inference.protocol.events import Accepted, Cancelled, Delta, Finished
from inference.protocol.generation import GenerationRequest, OutputFormat, TextInput, TokensInput
from inference.protocol.held import NO_GATEWAY, HeldRequests, decode_held_requests
from inference.protocol.keys import INBOX_FRAME_FIELD, gateway_alive_key, held_key, inbox_key
from inference.protocol.sampling import SamplingOptions

TEXT = "The capital of France is Paris."
MakeService = Callable[..., NeuronService]


def _text(events: list[Any]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


def test_a_request_is_accepted_streamed_and_finished(loaded: Any, gateway: Any) -> None:
    request_id = gateway.submit(TEXT, max_tokens=200)
    loaded.drain_inbox()  # or the heartbeat did
    events = gateway.wait_end(request_id)
    accepted, finished = events[0], events[-1]
    assert isinstance(accepted, Accepted)
    assert isinstance(finished, Finished)
    assert events[-2].reason == "length"
    assert finished.usage.completion_tokens == 200
    assert finished.usage.prompt_tokens == accepted.prompt_tokens
    assert _text(events).startswith(TEXT + TEXT)
    assert [batch.sequence_number for batch in gateway.batches] == list(range(len(gateway.batches)))
    assert {batch.epoch for batch in gateway.batches} == {loaded.epoch}


def test_a_lost_doorbell_is_made_good_by_the_heartbeat(loaded: Any, gateway: Any) -> None:
    request_id = gateway.submit(max_tokens=1)
    assert isinstance(gateway.wait_end(request_id)[-1], Finished)


def test_a_stop_string_ends_the_answer_and_frees_the_engine(
    loaded: Any, gateway: Any, wait_until: Any
) -> None:
    request = GenerationRequest(
        model="m", input=TextInput(texts=[TEXT]), sampling=SamplingOptions(), stop=["France"]
    )
    request_id = gateway.submit(request=request)
    loaded.drain_inbox()
    events = gateway.wait_end(request_id)
    assert _text(events) == "The capital of "
    assert events[-2].reason == "stop"
    assert events[-2].stop_sequence == "France"
    wait_until(gateway.is_idle)
    assert sum(isinstance(event, Finished) for event in gateway.events(request_id)) == 1


def test_echo_and_logprobs(loaded: Any, gateway: Any) -> None:
    request = GenerationRequest(
        model="m",
        input=TextInput(texts=[TEXT]),
        sampling=SamplingOptions(max_tokens=1, top_logprobs=1),
        echo=True,
    )
    request_id = gateway.submit(request=request)
    loaded.drain_inbox()
    events = gateway.wait_end(request_id)
    assert _text(events) == TEXT + "The"
    first_of_prompt, logprob = events[1].logprobs
    assert first_of_prompt.logprob is None
    assert (logprob.token, logprob.token_bytes, logprob.logprob) == ("The", b"The", -0.5)
    assert logprob.top == [("The", b"The", -0.5)]


def test_cancel_reaches_a_running_request(loaded: Any, gateway: Any) -> None:
    request_id = gateway.submit()
    loaded.drain_inbox()
    gateway.wait_events(request_id, lambda events: len(events) > 3)
    gateway.cancel(request_id)
    loaded.drain_inbox()
    events = gateway.wait_end(request_id)
    assert isinstance(events[-1], Cancelled)
    assert sum(isinstance(event, Cancelled) for event in events) == 1


def test_an_unload_at_once_fails_what_an_earlier_one_waits_for(
    make_service: MakeService, fake_spec: Any, gateway: Any
) -> None:
    service = make_service()
    service.load_model(fake_spec(rate=0))
    gateway.wait_status("ready")
    request_id = gateway.submit()
    service.drain_inbox()
    gateway.wait_events(request_id, len)
    service.unload_model("m")
    gateway.wait_status("draining")
    assert len(gateway.events(request_id)) == 1, "it is waited for"
    service.unload_model("m", True)
    failure = gateway.wait_end(request_id)[-1].failure
    assert failure.code == "draining" and "unloaded" in failure.message
    assert failure.retry_after_s is not None


def test_cancel_in_the_same_drain_as_its_submit(loaded: Any, gateway: Any, wait_until: Any) -> None:
    request_ids = [gateway.submit() for _ in range(20)]
    for request_id in request_ids:
        gateway.cancel(request_id)
    loaded.drain_inbox()
    for request_id in request_ids:
        assert isinstance(gateway.wait_end(request_id)[-1], Cancelled)
    wait_until(lambda: gateway.is_idle(after_steps=False))


def test_cancel_of_a_sequence_that_never_stepped(
    make_service: MakeService, fake_spec: Any, gateway: Any
) -> None:
    """Queued or prefilling: the engine has it and has sent nothing about it."""
    service = make_service()
    service.load_model(fake_spec(rate=0))
    gateway.wait_status("ready")
    request_id = gateway.submit()
    service.drain_inbox()
    gateway.wait_events(request_id, bool)
    gateway.cancel(request_id)
    service.drain_inbox()
    assert isinstance(gateway.wait_end(request_id)[-1], Cancelled)


@pytest.mark.parametrize(
    ("sampling", "num_prompt_tokens", "numbers"),
    [({}, 1000, ("1000", "1000")), ({"max_tokens": 600}, 500, ("1000", "1100"))],
)
def test_what_does_not_fit_the_context_is_refused_with_both_numbers(
    loaded: Any, gateway: Any, sampling: Any, num_prompt_tokens: int, numbers: tuple[str, str]
) -> None:
    request = GenerationRequest(
        model="m",
        input=TokensInput(prompts=[[5] * num_prompt_tokens]),
        sampling=SamplingOptions(**sampling),
    )
    request_id = gateway.submit(request=request)
    loaded.drain_inbox()
    (failed,) = gateway.wait_end(request_id)
    assert failed.failure.code == "context_length_exceeded"
    assert all(number in failed.failure.message for number in numbers)


def test_an_engine_failure_is_passed_on(loaded: Any, gateway: Any) -> None:
    request_id = gateway.submit(seed=666)
    loaded.drain_inbox()
    assert gateway.wait_end(request_id)[-1].failure.code == "queue_full"


def test_refusals_before_the_engine(loaded: Any, gateway: Any) -> None:
    late = gateway.submit(deadline_s=-1.0)
    unknown = gateway.submit(model="nobody")
    empty_stop = gateway.submit(
        request=GenerationRequest(model="m", input=TextInput(texts=["x"]), stop=[""])
    )
    bad_token = gateway.submit(
        request=GenerationRequest(model="m", input=TokensInput(prompts=[[10_000]]))
    )
    loaded.drain_inbox()
    codes = [
        gateway.wait_end(request_id)[-1].failure.code
        for request_id in (late, unknown, empty_stop, bad_token)
    ]
    assert codes == ["queue_timeout", "model_not_loaded", "invalid_value", "bad_token_id"]


def test_garbage_in_the_inbox_harms_nobody(loaded: Any, gateway: Any) -> None:
    gateway.client.xadd(inbox_key("n1"), {INBOX_FRAME_FIELD: b"\xff\xff"})
    gateway.client.xadd(inbox_key("n1"), {b"other": b"field"})
    request_id = gateway.submit(max_tokens=1)
    loaded.drain_inbox()
    assert isinstance(gateway.wait_end(request_id)[-1], Finished)


def test_a_schema_that_cannot_be_enforced_is_refused_by_name(loaded: Any, gateway: Any) -> None:
    request = GenerationRequest(
        model="m",
        input=TextInput(texts=[TEXT]),
        output_format=OutputFormat(path="response_format", schema={"not": {}}),
    )
    request_id = gateway.submit(request=request)
    loaded.drain_inbox()
    failure = gateway.wait_end(request_id)[-1].failure
    assert (failure.code, failure.param) == ("invalid_schema", "response_format.not")


@pytest.mark.slow
def test_requests_of_a_dead_gateway_are_dropped(
    loaded: Any, gateway: Any, redis_db: redis.Redis, wait_until: Any
) -> None:
    request_id = gateway.submit()
    loaded.drain_inbox()
    gateway.wait_events(request_id, lambda events: len(events) > 2)
    redis_db.delete(gateway_alive_key("gw"))
    wait_until(gateway.is_idle)
    assert redis_db.ttl("helexa:neuron:n1:events:gw") > 0


@pytest.mark.slow
def test_it_lists_the_requests_that_it_holds(
    loaded: Any, gateway: Any, redis_db: redis.Redis, wait_until: Any
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
    assert (listed.epoch, of_others.request_ids) == (loaded.epoch, [])
    assert redis_db.ttl(held_key("n1")) > 0
    gateway.cancel(request_id)
    wait_until(lambda: ids() == [])
    assert held("gw").beat > listed.beat
