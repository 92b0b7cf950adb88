"""Faults that an operator orders happen once, only where they are allowed, and pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psutil
import pytest
import redis

from inference.neuron.process import redis_client
from inference.neuron.process.redis_client import connect
from inference.neuron.service import NeuronService
from inference.protocol.drills import Fault, FaultOrder
from inference.protocol.events import Failed, Finished
from tests.inference.neuron.fake_engines import running_engines

pytestmark = pytest.mark.slow

MakeService = Callable[..., NeuronService]


def answers(service: NeuronService, gateway: Any) -> bool:
    request_id = gateway.submit(max_tokens=1)
    service.drain_inbox()
    return isinstance(gateway.wait_end(request_id)[-1], Finished)


@pytest.fixture
def service(make_service: MakeService, fake_spec: Any, gateway: Any) -> NeuronService:
    service = make_service(allows_drills=True)
    service.load_model(fake_spec())
    gateway.wait_status("ready")
    return service


def test_a_neuron_refuses_faults_by_default(
    make_service: MakeService, fake_spec: Any, gateway: Any, caplog: pytest.LogCaptureFixture
) -> None:
    service = make_service()
    assert not service.heartbeat().allows_drills
    service.load_model(fake_spec())
    gateway.wait_status("ready")
    (engine,) = running_engines()
    service.drills.inject(FaultOrder(fault=Fault.KILL_ENGINE, model="m"))
    assert "HELEXA_FAULT_DRILLS is not set" in caplog.text
    assert answers(service, gateway) and psutil.pid_exists(engine.pid)


def test_a_killed_engine_fails_its_requests_and_comes_back(
    service: NeuronService, gateway: Any, wait_until: Any
) -> None:
    request_id = gateway.submit()
    service.drain_inbox()
    gateway.wait_events(request_id, lambda events: len(events) > 2)
    service.drills.inject(FaultOrder(fault=Fault.KILL_ENGINE, model="m"))
    failed = gateway.wait_end(request_id)[-1]
    assert isinstance(failed, Failed) and failed.failure.code == "engine_crashed"
    wait_until(lambda: gateway.replica().num_restarts == 1)
    gateway.wait_status("ready")
    assert answers(service, gateway)


def test_a_stalled_engine_is_ended_by_the_silence_limit(
    make_service: MakeService, fake_spec: Any, gateway: Any, wait_until: Any
) -> None:
    service = make_service(allows_drills=True, silence_limit_s=5.0)
    service.load_model(fake_spec())
    gateway.wait_status("ready")
    (engine,) = running_engines()
    service.drills.inject(FaultOrder(fault=Fault.STALL_ENGINE, model="m", lasts_s=600))
    wait_until(lambda: engine.status() == psutil.STATUS_STOPPED)
    wait_until(lambda: gateway.replica().num_restarts > 0)
    gateway.wait_status("ready")
    assert answers(service, gateway)


def test_a_short_stall_passes(make_service: MakeService, fake_spec: Any, gateway: Any) -> None:
    service = make_service(allows_drills=True, silence_limit_s=60.0)
    service.load_model(fake_spec())
    gateway.wait_status("ready")
    (engine,) = running_engines()
    service.drills.inject(FaultOrder(fault=Fault.STALL_ENGINE, model="m", lasts_s=1))
    assert answers(service, gateway)
    assert gateway.replica().num_restarts == 0 and engine.is_running()


def test_the_next_load_fails_and_the_one_after_it_does_not(
    make_service: MakeService, fake_spec: Any, gateway: Any
) -> None:
    service = make_service(allows_drills=True)
    service.drills.inject(FaultOrder(fault=Fault.FAIL_LOAD, model="m"))
    service.load_model(fake_spec())
    failure = gateway.wait_status("failed").failure
    assert failure.code == "engine_crashed" and "a drill has this start fail" in failure.message
    service.load_model(fake_spec("m", "j2"))
    gateway.wait_status("ready")
    assert answers(service, gateway)


class Clock:
    """The links': it stands still unless the test moves it on."""

    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(redis_client, "time", made)
    return made


def test_a_dropped_link_comes_back(redis_url: str, clock: Clock) -> None:
    client = connect(redis_url)
    client.set("helexa:drill", b"1")
    client.connection_pool.drop(5.0)
    clock.now_s += 4.9
    with pytest.raises(redis.ConnectionError, match="for a drill"):
        client.get("helexa:drill")
    clock.now_s += 0.2
    assert client.get("helexa:drill") == b"1"


def test_a_neuron_whose_link_is_dropped_continues_serving_once_it_is_back(
    clock: Clock, service: NeuronService, gateway: Any, wait_until: Any
) -> None:
    service.drills.inject(FaultOrder(fault=Fault.DROP_LINK, lasts_s=2))
    gateway.submit(max_tokens=1)
    with pytest.raises(redis.ConnectionError):
        service.drain_inbox()
    clock.now_s += 3.0

    def is_back() -> bool:
        try:
            return answers(service, gateway)
        except redis.ConnectionError:
            return False

    wait_until(is_back)


def test_what_has_no_engine_is_logged(
    service: NeuronService, caplog: pytest.LogCaptureFixture
) -> None:
    service.drills.inject(FaultOrder(fault=Fault.KILL_ENGINE, model="other"))
    assert "other has no engine here" in caplog.text
