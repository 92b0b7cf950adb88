"""Loads and unloads on a whole neuron but for Celery, and what outlives it."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import redis

from inference.loading.host import HostMemory
from inference.neuron.host import discovery
from inference.neuron.host.discovery import Discovery
from inference.neuron.service import NeuronService
from inference.protocol.events import Failed, Finished
from inference.protocol.keys import heartbeat_key, specs_key
from inference.protocol.load import EarlierLoads, spec_digest
from inference.protocol.load_progress import LOADED
from tests.inference.neuron.fake_engines import running_engines

pytestmark = pytest.mark.slow

MakeService = Callable[..., NeuronService]


def test_a_loading_model_reports_it(
    make_service: MakeService, fake_spec: Any, gateway: Any
) -> None:
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
    make_service: MakeService, fake_spec: Any, gateway: Any, wait_until: Any
) -> None:
    service = make_service()
    service.load_model(fake_spec(load_fails=1))
    state = gateway.wait_status("failed")
    assert state.failure.code == "does_not_fit"
    wait_until(lambda: not gateway.client.exists(specs_key("n1")))
    service.load_model(fake_spec(job_id="j2"))
    assert gateway.wait_status("ready").job_id == "j2"


def test_an_engine_that_dies_while_loading_fails_the_load(
    make_service: MakeService, fake_spec: Any, gateway: Any
) -> None:
    make_service().load_model(fake_spec(crash_load=1))
    state = gateway.wait_status("failed")
    assert state.failure.code == "engine_crashed"
    assert "code 3" in state.failure.message


def test_a_replica_reports_what_it_can_do_once_it_is_loaded(
    make_service: MakeService, fake_spec: Any, gateway: Any
) -> None:
    spec = msgspec.structs.replace(fake_spec(load_s=0.3), max_output_tokens=7)
    make_service().load_model(spec)
    assert gateway.wait_status("loading").capabilities == []
    state = gateway.wait_status("ready")
    assert "structured_output" in state.capabilities
    assert "tool_call" not in state.capabilities
    assert state.max_output_tokens == 7


def test_the_log_has_the_seconds_of_the_whole_load(
    make_service: MakeService, fake_spec: Any, gateway: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="inference.neuron"):
        make_service().load_model(fake_spec(load_s=0.3))
        gateway.wait_status("ready")
    (took_s,) = re.findall(r"replica m: ready after (\d+\.\d) s", caplog.text)
    assert float(took_s) >= 0.3


def test_a_loaded_model_reports_its_spec_and_that_its_load_is_complete(
    loaded: Any, fake_spec: Any, gateway: Any, wait_until: Any
) -> None:
    state = gateway.replica()
    assert state.spec_digest == spec_digest(fake_spec())
    assert state.devices == ["cpu"]
    assert state.progress == LOADED
    assert state.last_used_unix_s is None
    gateway.submit(max_tokens=1)
    loaded.drain_inbox()
    wait_until(lambda: gateway.replica().last_used_unix_s is not None)


def test_a_second_load_of_the_same_spec_takes_over_the_job(
    loaded: Any, fake_spec: Any, gateway: Any, wait_until: Any
) -> None:
    (engine,) = running_engines()
    loaded.load_model(fake_spec(job_id="j2"))
    wait_until(lambda: gateway.replica().job_id == "j2")
    assert running_engines() == [engine]


def test_what_earlier_loads_showed_makes_no_other_spec(
    loaded: Any, fake_spec: Any, gateway: Any, wait_until: Any
) -> None:
    (engine,) = running_engines()
    known = EarlierLoads(device_kind="cpu", memory_correction_bytes=5)
    loaded.load_model(msgspec.structs.replace(fake_spec(job_id="j2"), earlier_loads=known))
    wait_until(lambda: gateway.replica().job_id == "j2")
    assert running_engines() == [engine]


def test_another_spec_replaces_the_model(
    loaded: Any, fake_spec: Any, gateway: Any, wait_until: Any
) -> None:
    (engine,) = running_engines()
    loaded.load_model(fake_spec(job_id="j2", rate=300))
    wait_until(lambda: gateway.replica().job_id == "j2" and gateway.replica().status == "ready")
    assert running_engines() != [engine]


def test_unload_waits_for_what_runs(loaded: Any, gateway: Any, wait_until: Any) -> None:
    request_id = gateway.submit(max_tokens=60)
    loaded.drain_inbox()
    gateway.wait_events(request_id, lambda events: len(events) > 2)
    loaded.unload_model("m")
    assert isinstance(gateway.wait_end(request_id)[-1], Finished)
    wait_until(lambda: gateway.replica() is None)
    assert not running_engines()
    assert not gateway.client.exists(specs_key("n1"))


def test_unload_during_a_load(
    make_service: MakeService, fake_spec: Any, gateway: Any, wait_until: Any
) -> None:
    service = make_service()
    service.load_model(fake_spec(load_s=30))
    wait_until(running_engines)
    service.unload_model("m")
    wait_until(lambda: not running_engines() and gateway.replica() is None)


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
    assert not gateway.has_heartbeat(), "a stopped neuron is away at once"
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
    memory = HostMemory(2 * free_bytes, free_bytes)
    monkeypatch.setattr(discovery, "host_memory", lambda: memory)
    service = make_service(discovery=Discovery())
    service.load_model(fake_spec(takes_gb=10))
    gateway.wait_status("ready")
    [cpu] = service.heartbeat().devices
    promised_bytes = free_bytes - cpu.free_memory_bytes
    assert 9.5 * 10**9 < promised_bytes < 10**10  # it holds a little of it
    assert service.heartbeat().host.free_memory_bytes == free_bytes
    service.load_model(fake_spec(model="other"))
    other = gateway.wait_status("ready", "other")
    reported_bytes = int(other.report.context_reason.split()[0])  # reserved by others than it
    assert abs(reported_bytes - promised_bytes) < 10**8
    service.unload_model("m")
    service.unload_model("other")
    wait_until(lambda: not service.heartbeat().replicas)
    assert service.heartbeat().devices[0].free_memory_bytes == free_bytes


def test_an_engine_is_asked_to_drop_an_adapter(
    loaded: NeuronService, gateway: Any, wait_until: Any
) -> None:
    loaded.drop_adapter("another", "sql")  # which is not loaded here
    loaded.drop_adapter("m", "sql")
    wait_until(lambda: (stats := gateway.replica().stats) and stats.adapters == ["sql"])
