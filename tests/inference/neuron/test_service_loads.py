"""Loads and unloads on a whole neuron but for Celery, and what outlives it."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
import redis

from inference.loading.host import HostMemory
from inference.neuron.host import discovery
from inference.neuron.host.discovery import Discovery
from inference.protocol.events import Finished
from inference.protocol.keys import heartbeat_key, specs_key
from inference.protocol.load import EarlierLoads, spec_digest
from inference.protocol.load_progress import LOADED
from tests.inference.neuron.conftest import TestNeuron, failure_of, wait_until
from tests.inference.neuron.fake_engines import running_engines

pytestmark = pytest.mark.slow


def test_a_model_that_loads_refuses_requests_and_is_unloaded(
    neuron: TestNeuron, gateway: Any
) -> None:
    state = neuron.load(load_s=30, status="loading")
    assert (state.job_id, state.capabilities) == ("j1", [])
    failure = failure_of(neuron.ask())
    assert failure.code == "model_loading" and failure.retry_after_s
    wait_until(running_engines)
    neuron.service.unload_model("m")
    wait_until(lambda: not running_engines() and gateway.replica() is None)


def test_a_refused_load_fails_with_its_reason(
    neuron: TestNeuron, gateway: Any, caplog: pytest.LogCaptureFixture
) -> None:
    failure = neuron.refused(crash_load=1)
    assert failure.code == "engine_crashed" and "code 3" in failure.message
    neuron.service.unload_model("m")
    neuron.wait_gone()
    assert neuron.refused(load_fails=1).code == "does_not_fit"
    assert "not loaded (does_not_fit): needs 9 GB, 1 GB is free" in caplog.text
    assert "orphaned" not in caplog.text
    wait_until(lambda: not gateway.client.exists(specs_key("n1")))
    assert neuron.load(job_id="j2").job_id == "j2"


def test_failed_loads_in_a_row_are_counted_until_another_spec_comes(
    neuron: TestNeuron, gateway: Any
) -> None:
    for job_id, number, options in [
        *((f"j{number}", number, {}) for number in (1, 2, 3)),
        ("other", 1, {"rate": 300}),
    ]:
        neuron.load(job_id=job_id, load_fails=1, status=None, **options)
        wait_until(lambda job_id=job_id: gateway.wait_status("failed").job_id == job_id)
        assert gateway.replica().num_failed_loads == number


def test_a_loaded_model_reports_what_it_is(
    neuron: TestNeuron, gateway: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="inference.neuron")
    options = {"load_s": 0.3, "max_output_tokens": 7}
    state = neuron.load(**options)
    assert "structured_output" in state.capabilities
    assert "tool_call" not in state.capabilities
    assert state.max_output_tokens == 7
    assert state.spec_digest == spec_digest(neuron.spec(**options))
    assert (state.devices, state.progress) == (["cpu"], LOADED)
    assert state.last_used_unix_s is None
    (took_s,) = re.findall(r"replica m: ready after (\d+\.\d) s", caplog.text)
    assert float(took_s) >= 0.3
    assert neuron.answers()
    wait_until(lambda: gateway.replica().last_used_unix_s is not None)


def test_only_another_spec_replaces_the_model(loaded: TestNeuron, gateway: Any) -> None:
    (engine,) = running_engines()
    known = EarlierLoads(device_kind="cpu", memory_correction_bytes=5)
    for job_id, same in (("j2", {}), ("j3", {"earlier_loads": known})):
        loaded.load(job_id=job_id, status=None, **same)
        wait_until(lambda job_id=job_id: gateway.replica().job_id == job_id)
        assert running_engines() == [engine]
    loaded.load(job_id="j4", rate=300, status=None)
    wait_until(lambda: gateway.replica().job_id == "j4" and gateway.replica().status == "ready")
    assert running_engines() != [engine]


def test_unload_waits_for_what_runs(loaded: TestNeuron, gateway: Any) -> None:
    request_id = loaded.running(max_tokens=60)
    loaded.service.unload_model("m")
    assert isinstance(gateway.wait_end(request_id)[-1], Finished)
    loaded.wait_gone()
    assert not running_engines()
    assert not gateway.client.exists(specs_key("n1"))


def test_stopping_fails_what_runs_and_the_next_life_loads_what_the_last_had(
    loaded: TestNeuron, gateway: Any
) -> None:
    request_id = loaded.running()
    loaded.service.stop()
    assert failure_of(gateway.wait_end(request_id)).code == "neuron_stopping"
    assert not gateway.has_heartbeat(), "a stopped neuron is away at once"
    service = loaded.start()
    gateway.wait_status("ready")
    assert gateway.heartbeat().epoch == service.epoch != loaded.service.epoch


def test_specs_come_back_after_redis_lost_everything(
    loaded: TestNeuron, redis_db: redis.Redis
) -> None:
    redis_db.flushall()
    wait_until(
        lambda: redis_db.hexists(specs_key("n1"), "m") and redis_db.exists(heartbeat_key("n1"))
    )


def test_what_loaded_models_may_still_take_is_not_free(
    neuron: TestNeuron, gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    free_bytes = 32 * 10**9
    memory = HostMemory(2 * free_bytes, free_bytes)
    monkeypatch.setattr(discovery, "host_memory", lambda: memory)
    neuron.options = {"discovery": Discovery()}
    neuron.load(takes_gb=10)
    service = neuron.service
    [cpu] = service.heartbeat().devices
    promised_bytes = free_bytes - cpu.free_memory_bytes
    assert 9.5 * 10**9 < promised_bytes < 10**10  # it holds a little of it
    assert service.heartbeat().host.free_memory_bytes == free_bytes
    other = neuron.load("other")
    reported_bytes = int(other.report.context_reason.split()[0])  # reserved by others than it
    assert abs(reported_bytes - promised_bytes) < 10**8
    service.unload_model("m")
    service.unload_model("other")
    wait_until(lambda: not service.heartbeat().replicas)
    assert service.heartbeat().devices[0].free_memory_bytes == free_bytes


def test_an_engine_is_asked_to_drop_an_adapter(loaded: TestNeuron, gateway: Any) -> None:
    loaded.service.drop_adapter("another", "sql")  # which is not loaded here
    loaded.service.drop_adapter("m", "sql")
    wait_until(lambda: (stats := gateway.replica().stats) and stats.adapters == ["sql"])
