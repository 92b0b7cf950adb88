"""Engine processes that die, lose their device or hang, on a whole neuron but for Celery."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from inference.neuron.service import NeuronService
from inference.protocol.events import Delta, Failed, Finished
from inference.protocol.keys import specs_key
from tests.inference.neuron.fake_engines import running_engines

pytestmark = pytest.mark.slow

MakeService = Callable[..., NeuronService]


def test_a_killed_engine_fails_its_requests_once_and_comes_back(
    loaded: Any, gateway: Any, wait_until: Any
) -> None:
    request_ids = [gateway.submit() for _ in range(3)]
    loaded.drain_inbox()
    for request_id in request_ids:
        gateway.wait_events(request_id, lambda events: len(events) > 2)
    (engine,) = running_engines()
    os.kill(engine.pid, signal.SIGKILL)
    for request_id in request_ids:
        events = gateway.wait_end(request_id)
        (failed,) = [event for event in events if isinstance(event, Failed)]
        assert failed.failure.code == "engine_crashed"
        num_sent = sum(event.num_tokens for event in events if isinstance(event, Delta))
        assert failed.usage is not None and failed.usage.completion_tokens >= num_sent > 0
        assert failed.usage.prompt_tokens > 0
    wait_until(lambda: gateway.wait_status("ready").num_restarts == 1)
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


def test_an_engine_that_reports_nothing_any_more_is_killed(
    make_service: MakeService, fake_spec: Any, gateway: Any, caplog: pytest.LogCaptureFixture
) -> None:
    service = make_service(silence_limit_s=5.0)
    # A load may be silent for longer than that; one that was killed for it would have failed.
    service.load_model(fake_spec(hang_after=5, load_s=5.5))
    gateway.wait_status("ready")
    _fails_and_comes_back(service, gateway, "engine_hung")
    assert "(SIGKILL)" in caplog.text


def test_a_stopped_engine_is_killed_too(
    make_service: MakeService, fake_spec: Any, gateway: Any, wait_until: Any
) -> None:
    """Nothing runs in it, not even a thread that could notice."""
    service = make_service(silence_limit_s=5.0)
    service.load_model(fake_spec())
    gateway.wait_status("ready")
    (engine,) = running_engines()
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
    deadline_s = time.monotonic() + 60
    while gateway.wait_status("ready").num_restarts == 0:
        assert time.monotonic() < deadline_s, "it was not started again"
    request_id = gateway.submit(max_tokens=1)
    service.drain_inbox()
    assert isinstance(gateway.wait_end(request_id)[-1], Finished)


def test_the_watchdog_gives_up_after_quick_failures(
    loaded: Any, gateway: Any, wait_until: Any
) -> None:
    def kill_or_failed() -> bool:
        for engine in running_engines():
            with contextlib.suppress(psutil.NoSuchProcess):  # the neuron was quicker
                engine.kill()
        return gateway.replica().status == "failed"

    wait_until(kill_or_failed)
    state = gateway.replica()
    assert state.failure.code == "engine_crashed"
    assert "3 failures in a row" in state.failure.message
    assert gateway.client.hexists(specs_key("n1"), "m"), "the next life tries again"
