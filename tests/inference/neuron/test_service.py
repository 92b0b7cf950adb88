"""A whole neuron but for Celery: real Redis, real engine processes that speak the real channel."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import psutil
import pytest
import redis

from inference.neuron import discovery
from inference.neuron.discovery import Discovery
from inference.neuron.redis_client import connect
from inference.neuron.restart_policy import RestartPolicy
from inference.neuron.service import NeuronService
from inference.protocol.events import Accepted, Cancelled, Delta, Failed, Finished
from inference.protocol.generation import GenerationRequest, OutputFormat, TextInput, TokensInput
from inference.protocol.keys import gateway_alive_key, heartbeat_key, specs_key
from inference.protocol.load import EarlierLoads
from inference.protocol.sampling import SamplingOptions

TEXT = "The capital of France is Paris."
MakeService = Callable[..., NeuronService]


@pytest.fixture
def make_service(redis_url: str, engine_command: list[str]) -> Iterator[MakeService]:
    services: list[NeuronService] = []

    def make(**changes: Any) -> NeuronService:
        options = {
            "name": "n1",
            "client": connect(redis_url),
            "engine_command": engine_command,
            "discovery": Discovery.run(),
            "restart_policy": RestartPolicy(first_delay_s=0.01, max_quick_failures=2),
        }
        service = NeuronService(**(options | changes))
        services.append(service)
        service.start()
        return service

    yield make
    for service in services:
        service.stop()
    assert not _engines()


def _engines() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if "fake_engine.py" in " ".join(child.cmdline())
    ]


@pytest.fixture
def loaded(make_service: MakeService, fake_spec: Any, gateway: Any) -> NeuronService:
    service = make_service()
    service.load_model(fake_spec())
    gateway.wait_status("ready")
    return service


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


def test_cancel_reaches_a_running_request_quickly(loaded: Any, gateway: Any) -> None:
    request_id = gateway.submit()
    loaded.drain_inbox()
    gateway.wait_events(request_id, lambda events: len(events) > 3)
    gateway.cancel(request_id)
    asked_s = time.monotonic()
    loaded.drain_inbox()
    events = gateway.wait_end(request_id)
    assert isinstance(events[-1], Cancelled)
    assert time.monotonic() - asked_s < 2.0
    assert sum(isinstance(event, Cancelled) for event in events) == 1


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
    """Queued or prefilling: the engine has it and has said nothing of it."""
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
    gateway.client.lpush("helexa:neuron:n1:inbox", b"\xff\xff")
    request_id = gateway.submit(max_tokens=1)
    loaded.drain_inbox()
    assert isinstance(gateway.wait_end(request_id)[-1], Finished)


def test_a_loading_model_says_so(make_service: MakeService, fake_spec: Any, gateway: Any) -> None:
    service = make_service()
    service.load_model(fake_spec(load_s=30))
    state = gateway.wait_status("loading")
    assert state.job_id == "j1"
    request_id = gateway.submit()
    service.drain_inbox()
    (failed,) = gateway.wait_end(request_id)
    assert failed.failure.code == "model_loading"
    assert failed.failure.retry_after_s


def test_a_refused_load_fails_with_its_reason(
    make_service: MakeService, fake_spec: Any, gateway: Any
) -> None:
    service = make_service()
    service.load_model(fake_spec(load_fails=1))
    state = gateway.wait_status("failed")
    assert state.failure.code == "does_not_fit"
    assert not gateway.client.exists(specs_key("n1"))
    service.load_model(fake_spec(job_id="j2"))
    assert gateway.wait_status("ready").job_id == "j2"


def test_an_engine_that_dies_while_loading_fails_the_load(
    make_service: MakeService, fake_spec: Any, gateway: Any
) -> None:
    make_service().load_model(fake_spec(crash_load=1))
    state = gateway.wait_status("failed")
    assert state.failure.code == "engine_crashed"
    assert "code 3" in state.failure.message


def test_a_replica_says_what_it_can_do_once_it_is_loaded(
    make_service: MakeService, fake_spec: Any, gateway: Any
) -> None:
    spec = msgspec.structs.replace(fake_spec(load_s=0.3), max_output_tokens=7)
    make_service().load_model(spec)
    assert gateway.wait_status("loading").capabilities == []
    state = gateway.wait_status("ready")
    assert "structured_output" in state.capabilities
    assert "tool_call" not in state.capabilities
    assert state.max_output_tokens == 7


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


def test_a_second_load_of_the_same_spec_takes_over_the_job(
    loaded: Any, fake_spec: Any, gateway: Any, wait_until: Any
) -> None:
    (engine,) = _engines()
    loaded.load_model(fake_spec(job_id="j2"))
    wait_until(lambda: gateway.replica().job_id == "j2")
    assert _engines() == [engine]


def test_what_earlier_loads_showed_makes_no_other_spec(
    loaded: Any, fake_spec: Any, gateway: Any, wait_until: Any
) -> None:
    (engine,) = _engines()
    known = EarlierLoads(device_kind="cpu", memory_correction_bytes=5)
    loaded.load_model(msgspec.structs.replace(fake_spec(job_id="j2"), earlier_loads=known))
    wait_until(lambda: gateway.replica().job_id == "j2")
    assert _engines() == [engine]


def test_another_spec_replaces_the_model(
    loaded: Any, fake_spec: Any, gateway: Any, wait_until: Any
) -> None:
    (engine,) = _engines()
    loaded.load_model(fake_spec(job_id="j2", rate=300))
    wait_until(lambda: gateway.replica().job_id == "j2" and gateway.replica().status == "ready")
    assert _engines() != [engine]


def test_a_killed_engine_fails_its_requests_once_and_comes_back(loaded: Any, gateway: Any) -> None:
    request_ids = [gateway.submit() for _ in range(3)]
    loaded.drain_inbox()
    for request_id in request_ids:
        gateway.wait_events(request_id, lambda events: len(events) > 2)
    (engine,) = _engines()
    os.kill(engine.pid, signal.SIGKILL)
    for request_id in request_ids:
        events = gateway.wait_end(request_id)
        assert [e.failure.code for e in events if isinstance(e, Failed)] == ["engine_crashed"]
    gateway.wait_status("ready")
    assert gateway.replica().num_restarts == 1
    request_id = gateway.submit(max_tokens=1)
    loaded.drain_inbox()
    assert isinstance(gateway.wait_end(request_id)[-1], Finished)


def test_a_lost_device_fails_its_requests_by_that_name_and_comes_back(
    make_service: MakeService, fake_spec: Any, gateway: Any, caplog: pytest.LogCaptureFixture
) -> None:
    service = make_service()
    service.load_model(fake_spec(fault_after=5))
    gateway.wait_status("ready")
    _fails_and_comes_back(service, gateway, "device_fault")
    assert "exited with code 70 (device fault)" in caplog.text


def test_an_engine_that_says_nothing_any_more_is_killed(
    make_service: MakeService, fake_spec: Any, gateway: Any, caplog: pytest.LogCaptureFixture
) -> None:
    service = make_service(silence_limit_s=3.0)
    # A load may be silent for longer than that; one that was killed for it would have failed.
    service.load_model(fake_spec(hang_after=5, load_s=3.5))
    gateway.wait_status("ready")
    _fails_and_comes_back(service, gateway, "engine_hung")
    assert "(SIGKILL)" in caplog.text


def test_a_stopped_engine_is_killed_too(
    make_service: MakeService, fake_spec: Any, gateway: Any, wait_until: Any
) -> None:
    """Nothing runs in it, not even a thread that could notice."""
    service = make_service(silence_limit_s=3.0)
    service.load_model(fake_spec())
    gateway.wait_status("ready")
    (engine,) = _engines()
    engine.suspend()
    wait_until(lambda: gateway.replica().num_restarts > 0)
    gateway.wait_status("ready")
    assert not psutil.pid_exists(engine.pid)


def _fails_and_comes_back(service: NeuronService, gateway: Any, code: str) -> None:
    request_ids = [gateway.submit(max_tokens=500) for _ in range(2)]
    service.drain_inbox()
    for request_id in request_ids:
        events = gateway.wait_end(request_id)
        (failure,) = [event.failure for event in events if isinstance(event, Failed)]
        assert (failure.code, failure.retry_after_s is not None) == (code, True)
    deadline_s = time.monotonic() + 20
    while gateway.wait_status("ready").num_restarts == 0:
        assert time.monotonic() < deadline_s, "it was not started again"
    request_id = gateway.submit(max_tokens=1)
    service.drain_inbox()
    assert isinstance(gateway.wait_end(request_id)[-1], Finished)


def test_the_watchdog_gives_up_after_quick_failures(
    loaded: Any, gateway: Any, wait_until: Any
) -> None:
    def kill_or_failed() -> bool:
        for engine in _engines():
            engine.kill()
        return gateway.replica().status == "failed"

    wait_until(kill_or_failed)
    state = gateway.replica()
    assert state.failure.code == "engine_crashed"
    assert "3 failures in a row" in state.failure.message
    assert gateway.client.hexists(specs_key("n1"), "m"), "the next life tries again"


def test_unload_waits_for_what_runs(loaded: Any, gateway: Any, wait_until: Any) -> None:
    request_id = gateway.submit(max_tokens=60)
    loaded.drain_inbox()
    gateway.wait_events(request_id, lambda events: len(events) > 2)
    loaded.unload_model("m")
    assert isinstance(gateway.wait_end(request_id)[-1], Finished)
    wait_until(lambda: gateway.replica() is None)
    assert not _engines()
    assert not gateway.client.exists(specs_key("n1"))


def test_unload_during_a_load(
    make_service: MakeService, fake_spec: Any, gateway: Any, wait_until: Any
) -> None:
    service = make_service()
    service.load_model(fake_spec(load_s=30))
    wait_until(_engines)
    service.unload_model("m")
    wait_until(lambda: not _engines() and gateway.replica() is None)


def test_unload_of_a_failed_model(
    make_service: MakeService, fake_spec: Any, gateway: Any, wait_until: Any
) -> None:
    service = make_service()
    service.load_model(fake_spec(load_fails=1))
    gateway.wait_status("failed")
    service.unload_model("m")
    wait_until(lambda: gateway.replica() is None)


def test_the_next_life_loads_what_the_last_had(
    loaded: Any, make_service: MakeService, gateway: Any
) -> None:
    loaded.stop()
    assert gateway.heartbeat() is None, "a stopped neuron is away at once"
    service = make_service()
    gateway.wait_status("ready")
    assert gateway.heartbeat().epoch == service.epoch != loaded.epoch


def test_stopping_fails_what_runs(loaded: Any, gateway: Any) -> None:
    request_id = gateway.submit()
    loaded.drain_inbox()
    gateway.wait_events(request_id, lambda events: len(events) > 2)
    loaded.stop()
    events = gateway.wait_end(request_id)
    assert [e.failure.code for e in events if isinstance(e, Failed)] == ["neuron_stopping"]


def test_requests_of_a_dead_gateway_are_dropped(
    loaded: Any, gateway: Any, redis_db: redis.Redis, wait_until: Any
) -> None:
    request_id = gateway.submit()
    loaded.drain_inbox()
    gateway.wait_events(request_id, lambda events: len(events) > 2)
    redis_db.delete(gateway_alive_key("gw"))
    wait_until(gateway.is_idle)
    assert redis_db.ttl("helexa:gateway:gw:events") > 0


def test_specs_come_back_after_redis_lost_everything(
    loaded: Any, gateway: Any, redis_db: redis.Redis, wait_until: Any
) -> None:
    redis_db.flushall()
    wait_until(
        lambda: redis_db.hexists(specs_key("n1"), "m") and redis_db.exists(heartbeat_key("n1"))
    )


def test_what_loaded_models_may_still_take_is_not_free(
    make_service: MakeService,
    fake_spec: Any,
    gateway: Any,
    wait_until: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free_bytes = 32 * 10**9
    monkeypatch.setattr(discovery, "_memory_bytes", lambda: (2 * free_bytes, free_bytes))
    service = make_service(discovery=Discovery())
    service.load_model(fake_spec(takes_gb=10))
    gateway.wait_status("ready")
    [cpu] = service.heartbeat().devices
    promised_bytes = free_bytes - cpu.free_memory_bytes
    assert 9.5 * 10**9 < promised_bytes < 10**10  # it holds a little of it
    assert service.heartbeat().host.free_memory_bytes == free_bytes
    service.load_model(fake_spec(model="other"))
    other = gateway.wait_status("ready", "other")
    told_bytes = int(other.report.context_reason.split()[0])
    assert abs(told_bytes - promised_bytes) < 10**8
    service.unload_model("m")
    service.unload_model("other")
    wait_until(lambda: not service.heartbeat().replicas)
    assert service.heartbeat().devices[0].free_memory_bytes == free_bytes
