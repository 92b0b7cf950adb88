"""Engine processes that die, lose their device or hang, on a whole neuron but for Celery."""

from __future__ import annotations

import contextlib
from typing import Any

import psutil
import pytest

from inference.protocol.events import Delta, Failed
from inference.protocol.keys import specs_key
from tests.inference.neuron.conftest import TestNeuron, failure_of, wait_until
from tests.inference.neuron.fake_engines import running_engines

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("options", "code", "logged"),
    [
        ({}, "engine_crashed", ""),
        ({"fault_after": 5}, "device_fault", "exited with code 70 (device fault)"),
        # A load may be silent for longer than the limit; killed for that, it would have failed.
        ({"hang_after": 5, "load_s": 5.5}, "engine_hung", "(SIGKILL)"),
    ],
    ids=["killed", "device lost", "hangs"],
)
def test_a_broken_engine_fails_its_requests_once_and_comes_back(
    neuron: TestNeuron, gateway: Any, caplog: Any, options: Any, code: str, logged: str
) -> None:
    neuron.options = {"silence_limit_s": 5.0}
    neuron.load(**options)
    request_ids = [gateway.submit(max_tokens=500) for _ in range(2)]
    neuron.service.drain_inbox()
    if not options:
        for request_id in request_ids:
            gateway.wait_events(request_id, lambda events: len(events) > 2)
        running_engines()[0].kill()
    for request_id in request_ids:
        events = gateway.wait_end(request_id)
        failure = failure_of(events)
        assert (failure.code, failure.retry_after_s is not None) == (code, True)
        usage = next(event.usage for event in events if isinstance(event, Failed))
        num_sent = sum(event.num_tokens for event in events if isinstance(event, Delta))
        if num_sent or not options:
            assert usage is not None and usage.completion_tokens >= num_sent > 0
            assert usage.prompt_tokens > 0
    wait_until(lambda: gateway.wait_status("ready").num_restarts == 1)
    assert logged in caplog.text
    assert neuron.answers()


def test_a_stopped_engine_is_killed_too(neuron: TestNeuron, gateway: Any) -> None:
    """Nothing runs in it, not even a thread that could notice."""
    neuron.options = {"silence_limit_s": 5.0}
    neuron.load()
    (engine,) = running_engines()
    engine.suspend()
    wait_until(lambda: gateway.replica().num_restarts > 0)
    gateway.wait_status("ready")
    assert not psutil.pid_exists(engine.pid)


def test_the_watchdog_gives_up_after_quick_failures(loaded: TestNeuron, gateway: Any) -> None:
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
