"""Requests through a whole neuron but for Celery: real Redis, real engine processes that speak the
real channel, and die, lose their device or hang."""

from __future__ import annotations

import contextlib
from typing import Any

import psutil
import pytest
import redis

from inference.neuron.replicas.retries import queue_specs, read_specs
from inference.protocol import keys
from inference.protocol.delivery import NO_GATEWAY, HeldRequests, decode_held_requests, load_mark
from inference.protocol.events import Accepted, Cancelled, Delta, Failed, Finished
from inference.protocol.generation import GenerationRequest, TextInput
from tests.inference.neuron.conftest import TestNeuron, failure_of, running_engines, wait_until
from tests.inference.neuron.fake_engine import POISON_SEED
from tests.inference.neuron.model_texts import request_for_model

TEXT = "The capital of France is Paris."


def request(given: Any = None, **fields: Any) -> GenerationRequest:
    return request_for_model(given or TextInput(texts=[TEXT]), **fields)


def _text(events: list[Any]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


def test_requests_are_streamed_stopped_and_cancelled(loaded: TestNeuron, gateway: Any) -> None:
    events = loaded.ask(TEXT, max_tokens=200)
    accepted, finished = events[0], events[-1]
    assert isinstance(accepted, Accepted) and isinstance(finished, Finished)
    assert events[-2].reason == "length"
    assert finished.usage.completion_tokens == 200
    assert finished.usage.prompt_tokens == accepted.prompt_tokens
    assert _text(events).startswith(TEXT + TEXT)
    assert [batch.sequence_number for batch in gateway.batches] == list(range(len(gateway.batches)))
    assert {batch.epoch for batch in gateway.batches} == {loaded.service.epoch}

    lost_doorbell = gateway.submit(max_tokens=1)  # the heartbeat looks
    assert isinstance(gateway.wait_end(lost_doorbell)[-1], Finished)

    events = loaded.ask(request=request(top_logprobs=1, echo=True, stop=["France"]))
    assert _text(events) == TEXT + "The capital of "
    assert (events[-2].reason, events[-2].stop_sequence) == ("stop", "France")
    wait_until(gateway.is_idle)
    assert sum(isinstance(event, Finished) for event in gateway.events(events[0].request_id)) == 1

    events = loaded.end(loaded.running())
    assert isinstance(events[-1], Cancelled)
    assert sum(isinstance(event, Cancelled) for event in events) == 1
    request_ids = [gateway.submit() for _ in range(20)]
    for request_id in request_ids:
        gateway.cancel(request_id)
    loaded.service.drain_inbox()  # submits and their cancels
    for request_id in request_ids:
        assert isinstance(gateway.wait_end(request_id)[-1], Cancelled)
    wait_until(gateway.is_idle)


def test_what_never_stepped_is_cancelled_or_unloaded(neuron: TestNeuron, gateway: Any) -> None:
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
    gateway.client.xadd(keys.inbox_key("n1"), {keys.INBOX_FRAME_FIELD: b"\xff\xff"})
    gateway.client.xadd(keys.inbox_key("n1"), {b"other": b"field"})
    refused: list[tuple[str, dict[str, Any]]] = [
        ("queue_timeout", {"deadline_s": -1.0}),
        ("model_not_loaded", {"model": "nobody"}),
        ("queue_full", {"seed": 666}),
        ("invalid_value", {"request": request(stop=[""])}),
    ]
    for code, asked in refused:
        failure = failure_of(loaded.ask(**asked))
        assert failure.code == code
    assert loaded.answers(), "nor has garbage in the inbox harmed anybody"


@pytest.mark.slow
def test_it_lists_the_requests_that_it_holds_and_drops_those_of_a_dead_gateway(
    loaded: TestNeuron, gateway: Any, redis_db: redis.Redis
) -> None:
    def held(gateway_id: str = "gw") -> HeldRequests | None:
        fields = redis_db.hgetall(keys.held_key("n1"))
        data = fields.get(gateway_id.encode(), fields.get(NO_GATEWAY.encode()))
        return decode_held_requests(data) if data else None

    def listing(*request_ids: str) -> HeldRequests:
        found: HeldRequests = wait_until(
            lambda: (one := held()) and one.request_ids == [*request_ids] and one
        )
        return found

    request_id = gateway.submit()
    listed, of_others = listing(request_id), held("another")
    assert (listed.epoch, of_others.request_ids) == (loaded.service.epoch, [])
    assert redis_db.ttl(keys.held_key("n1")) > 0
    gateway.cancel(request_id)
    assert listing().beat > listed.beat
    loaded.running()
    redis_db.delete(keys.gateway_alive_key("gw"))
    wait_until(lambda: redis_db.ttl("helexa:neuron:n1:events:gw") > 0)
    wait_until(gateway.is_idle)


def test_a_request_that_ends_its_engine_is_named_where_it_was_alone_and_not_run_again(
    loaded: TestNeuron, gateway: Any, redis_db: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    request_id = loaded.submit(seed=POISON_SEED)
    failure = failure_of(gateway.wait_end(request_id))
    assert (failure.code, failure.retry_after_s) == ("request_broke_worker", None)
    (line,) = [one for one in caplog.messages if f"request {request_id} " in one]
    assert "account anonymous" in line and "engine of m" in line and "SIGSEGV" in line
    wait_until(lambda: gateway.replica().num_restarts == 1)
    gateway.wait_status("ready")
    assert loaded.answers()
    wait_until(lambda: not redis_db.exists(keys.preparing_key("n1")))
    for request_id in (loaded.running(), loaded.submit(seed=POISON_SEED)):
        failure = failure_of(gateway.wait_end(request_id))
        assert failure.code == "engine_crashed", "it may have been either"
        assert failure.retry_after_s is not None


@pytest.mark.parametrize("is_alone", [True, False])
def test_what_the_last_instance_was_preparing_does_not_run(
    neuron: TestNeuron, gateway: Any, redis_db: redis.Redis, is_alone: bool
) -> None:
    marks = {"gw-1": "before"} | ({} if is_alone else {"gw-9": "before"})
    redis_db.hset(keys.preparing_key("n1"), mapping=marks)
    poison, other = gateway.submit(), gateway.submit(max_tokens=1)
    assert neuron.service
    code = "request_broke_worker" if is_alone else "neuron_lost"
    assert failure_of(gateway.wait_end(poison)).code == code
    # A request that only waited is taken as usual: its model is not loaded here.
    assert failure_of(gateway.wait_end(other)).code == "model_not_loaded"
    neuron.load()
    wait_until(lambda: redis_db.xlen(keys.inbox_key("n1")) == 0)
    assert {key.decode() for key in redis_db.hkeys(keys.preparing_key("n1"))} == set(marks)


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_model_that_ended_the_neuron_is_not_loaded_again(
    neuron: TestNeuron, gateway: Any, redis_db: redis.Redis, is_alone: bool
) -> None:
    """It used to end each instance after the other, and with it every other model. Where a request
    may have done it, the model is tried once more."""
    queue_specs(redis_db, "n1", [neuron.spec(), neuron.spec("good")])
    for mark in [load_mark("m")] + ["r"] * (not is_alone):
        redis_db.hset(keys.preparing_key("n1"), mark, "before")
    assert neuron.service
    gateway.wait_status("ready", "good")
    if is_alone:
        failure = gateway.wait_status("failed").failure
        assert (failure.code, failure.is_permanent) == ("bad_file", True)
        assert [spec.model for spec in read_specs(redis_db, "n1")] == ["good"], (
            "nor by the instance after this"
        )
    else:
        gateway.wait_status("ready")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "options", "code", "logged"),
    [
        ("kill", {}, "engine_crashed", ""),
        ("", {"fault_after": 5}, "device_fault", "exited with code 70 (device fault)"),
        # Nothing runs in it, not even a thread that could notice. A load may be silent for longer
        # than the limit; killed for that, it would have failed.
        ("suspend", {"load_s": 5.5}, "engine_hung", "(SIGKILL)"),
    ],
    ids=["killed", "device lost", "stopped"],
)
def test_a_broken_engine_fails_its_requests_once_and_comes_back_but_not_for_ever(
    neuron: TestNeuron, gateway: Any, caplog: Any, ending: str, options: Any, code: str, logged: str
) -> None:
    neuron.options = {"silence_limit_s": 5.0}
    neuron.load(**options)
    (engine,) = running_engines()
    request_ids = [gateway.submit(max_tokens=500) for _ in range(2)]
    neuron.service.drain_inbox()
    if ending:
        for request_id in request_ids:
            gateway.wait_running(request_id)
        getattr(engine, ending)()
    for request_id in request_ids:
        events = gateway.wait_end(request_id)
        failure = failure_of(events)
        assert (failure.code, failure.retry_after_s is not None) == (code, True)
        usage = next(event.usage for event in events if isinstance(event, Failed))
        num_sent = sum(event.num_tokens for event in events if isinstance(event, Delta))
        if num_sent or ending:
            assert usage is not None and usage.completion_tokens >= num_sent > 0
            assert usage.prompt_tokens > 0
    wait_until(lambda: gateway.wait_status("ready").num_restarts == 1)
    assert logged in caplog.text
    assert neuron.answers() and not psutil.pid_exists(engine.pid)
    if ending != "kill":
        return

    def kill_or_failed() -> bool:
        for engine in running_engines():
            with contextlib.suppress(psutil.NoSuchProcess):  # the neuron was quicker
                engine.kill()
        return gateway.replica().status == "failed"

    wait_until(kill_or_failed)
    state = gateway.replica()
    assert state.failure.code == "engine_crashed"
    assert "3 failures in a row" in state.failure.message
    assert gateway.client.hexists(keys.specs_key("n1"), "m"), "the next life tries again"
