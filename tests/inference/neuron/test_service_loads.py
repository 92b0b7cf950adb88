"""Models on a whole neuron but for Celery: their loads, turns, devices and memory, their sleep, and
what outlives them."""

from __future__ import annotations

import gc
import logging
import re
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from inference.neuron.replicas import engine_run
from inference.neuron.replicas.engine_process import EngineProcess
from inference.neuron.replicas.replica import Replica
from inference.neuron.replicas.retries import queue_specs, read_specs
from inference.neuron.text.model_text import ModelText
from inference.protocol.events import Finished
from inference.protocol.keys import specs_key
from inference.protocol.load import EarlierLoads, StageSpec, spec_digest
from inference.protocol.load_report import LOADED, LoadStage
from inference.text.tokenizer import Tokenizer
from tests.inference.neuron.conftest import TestNeuron, failure_of, running_engines, wait_until
from tests.inference.neuron.devices import GB, Machine, card, host

pytestmark = pytest.mark.slow


def test_a_load_is_cancelled_refused_and_counted(
    neuron: TestNeuron, gateway: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert neuron.load(load_s=30, status="loading").capabilities == []
    failure = failure_of(neuron.ask())
    assert failure.code == "model_loading" and failure.retry_after_s
    wait_until(running_engines)
    neuron.service.unload_model("m")
    wait_until(lambda: not running_engines() and gateway.replica() is None)
    failure = neuron.refused(load_fails=3)
    assert failure.code == "engine_crashed" and "code 3" in failure.message
    neuron.service.unload_model("m")
    neuron.wait_gone()
    for job_id, number, options in [
        *((f"j{number}", number, {}) for number in (1, 2, 3)),
        ("other", 1, {"rate": 300}),  # failures in a row of one spec are counted
    ]:
        state = neuron.load(job_id=job_id, load_fails=1, status="failed", **options)
        assert (state.num_failed_loads, state.failure.code) == (number, "does_not_fit")
    assert "not loaded (does_not_fit): needs 9 GB, 1 GB is free" in caplog.text
    assert "orphaned" not in caplog.text
    wait_until(lambda: not gateway.client.exists(specs_key("n1")))
    neuron.load(job_id="j2")


def test_a_loaded_model_reports_what_it_is_and_is_replaced_stopped_and_loaded_again(
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
    neuron.service.drop_adapter("another", "sql")  # which is not loaded here
    neuron.service.drop_adapter("m", "sql")
    wait_until(lambda: (stats := gateway.replica().stats) and stats.adapters == ["sql"])
    (engine,) = running_engines()
    known = EarlierLoads(device_kind="cpu", memory_correction_bytes=5)
    for job_id, same in (("j2", {}), ("j3", {"earlier_loads": known})):
        neuron.load(job_id=job_id, **options, **same)
        assert running_engines() == [engine]
    neuron.load(job_id="j4", rate=300)  # another spec
    assert running_engines() != [engine]
    request_id = neuron.running(max_tokens=60)
    neuron.service.unload_model("m")
    assert isinstance(gateway.wait_end(request_id)[-1], Finished)
    neuron.wait_gone()
    assert not running_engines()
    assert not gateway.client.exists(specs_key("n1"))
    neuron.load(job_id="j5")
    gateway.client.flushall()
    wait_until(lambda: gateway.client.hexists(specs_key("n1"), "m") and gateway.replica())
    gateway.stay_alive()
    request_id = neuron.running()
    neuron.service.leave(0.2, threading.Event())  # it is waited for, and not for ever
    neuron.service.stop()
    assert failure_of(gateway.wait_end(request_id)).code == "neuron_stopping"
    assert not gateway.latest_heartbeat(), "a stopped neuron is away at once"
    service = neuron.start()
    gateway.wait_status("ready")
    assert gateway.heartbeat().epoch == service.epoch != neuron.service.epoch


KINDS = (ModelText, Tokenizer, Replica, EngineProcess)


def test_unloaded_models_leave_nothing(neuron: TestNeuron, monkeypatch: pytest.MonkeyPatch) -> None:
    # Objects that are exempt from collections would be neither found nor freed here.
    monkeypatch.setattr(engine_run, "freeze_heap", lambda: None)

    def left() -> Counter[str]:
        gc.collect()
        return Counter(type(one).__name__ for one in gc.get_objects() if type(one) in KINDS)

    def load_and_unload(name: str, **options: float) -> None:
        if options:
            neuron.refused(name, **options)
        else:
            neuron.load(name)
            assert neuron.answers(name)
        neuron.service.unload_model(name)
        neuron.wait_gone(name)

    load_and_unload("first")
    before, threads = left(), threading.active_count()
    for index in range(6):
        load_and_unload(f"m{index}")
        load_and_unload(f"bad{index}", load_fails=1)
    wait_until(lambda: left() <= before)
    wait_until(lambda: threading.active_count() <= threads)


def test_cold_loads_take_turns(neuron: TestNeuron, cards: Machine, gateway: Any) -> None:
    neuron.load("a", load_s=30, status=None)
    wait_until(running_engines)
    neuron.load("b", needs_gb=15, status=None)
    wait_until(lambda: gateway.heartbeat().devices[1].reserved_bytes == 15 * GB)
    assert gateway.heartbeat().devices[1].free_memory_bytes == 5 * GB
    assert gateway.heartbeat().devices[0].free_memory_bytes == 6 * GB
    state = gateway.replica("b")
    assert (state.status, state.memory_bytes) == ("loading", 15 * GB)
    assert state.progress.stage is LoadStage.QUEUED
    assert state.progress.detail == "a is loaded first"
    # The free memory decides where the next one goes.
    neuron.load("c", status=None)
    wait_until(lambda: (state := gateway.replica("c")) is not None and state.devices)
    assert gateway.replica("c").devices == ["cuda:0"]
    neuron.service.unload_model("c")  # one that waits is cancelled at once
    neuron.wait_gone("c")
    assert gateway.replica("a").status == "loading"
    assert len(running_engines()) == 1
    neuron.service.unload_model("a")  # a load that is cancelled gives its turn on
    gateway.wait_status("ready", "b")


def test_evicted_models_leave_first_unless_one_got_busy(
    neuron: TestNeuron, cards: Machine, gateway: Any, three_layers: Path
) -> None:
    neuron.load("old", takes_gb=18, context=1_000_000)
    cards.there[1] = card(1, 2)  # the driver's word
    evicting = {"needs_gb": 15, "devices": ["cuda:1"], "evict": ["old", "long-gone"]}
    request_id = neuron.running(model="old", max_tokens=100_000)
    failure = neuron.refused("new", **evicting)
    assert (failure.code, failure.is_permanent) == ("lost_its_room", False)
    assert "old" in failure.message
    assert gateway.replica("old").status == "ready"
    weighed = {"source": f"path:{three_layers}", "file": None}  # where it does not fit
    costs = neuron.refused("big", **weighed, needs_gb=23).costs
    assert costs is not None and len(costs.layers) == 3
    stages = [
        StageSpec(device="cuda:0", layers=(0, 1), memory_bytes=GB),
        StageSpec(device="cuda:1", layers=(1, 3), memory_bytes=23 * GB),
    ]
    failure = neuron.refused("parts", **weighed, needs_gb=23, stages=stages)
    assert (failure.code, failure.costs) == ("does_not_fit", None), "it is divided"
    neuron.end(request_id)
    wait_until(lambda: gateway.replica("old").stats.in_flight == 0)
    neuron.load("new", "j2", **evicting, status=None)
    neuron.wait_gone("old")
    cards.there[1] = card(1, 20)
    gateway.wait_status("ready", "new")
    assert len(running_engines()) == 1
    (stored,) = read_specs(gateway.client, "n1")
    assert (stored.model, stored.evict) == ("new", [])  # the next instance evicts nothing


def test_a_restart_loads_what_was_used_last_first(neuron: TestNeuron, gateway: Any) -> None:
    used = {"a": None, "b": 20.0, "c": 30.0, "d": 10.0}
    needs: dict[str, Any] = {"needs_gb": 15, "devices": ["cuda:0"]}
    queue_specs(
        gateway.client,
        "n1",
        [neuron.spec(name, last_used_unix_s=at, **needs) for name, at in used.items()],
    )
    neuron.start(discovery=Machine(card(0, 20), host(100)))
    assert gateway.wait_status("ready", "c").last_used_unix_s == 30.0
    assert {gateway.replica(name).status for name in ("a", "b", "d")} == {"recovering"}
    kept = {spec.model: spec.last_used_unix_s for spec in read_specs(gateway.client, "n1")}
    assert kept == used, "for the instance after this one"


SLEEPER = {"takes_gb": 18, "asleep_gb": 1, "host_gb": 17, "sleep_s": 0.3}


def pids() -> list[int]:
    return [engine.pid for engine in running_engines()]


def test_it_sleeps_and_wakes(neuron: TestNeuron, cards: Machine, gateway: Any) -> None:
    neuron.load(**SLEEPER)
    before = pids()
    cards.there[2] = host(20)
    neuron.service.sleep_model("m", "j-sleep")
    wait_until(lambda: gateway.replica().sleep_refusal is not None)
    state = gateway.replica()
    assert (state.status, state.sleep_refusal.job_id) == ("ready", "j-sleep"), "it serves on"
    assert "no room for 17,000,000,000 bytes" in state.sleep_refusal.failure.message
    cards.there[2] = host(100)
    request_id = neuron.running(max_tokens=30)
    neuron.service.sleep_model("m", "j-again")
    # Gateways place it again: no engine has accepted it.
    assert failure_of(neuron.ask(max_tokens=3)).code == "model_not_loaded"
    assert isinstance(gateway.wait_end(request_id)[-1], Finished), "it is answered first"
    neuron.load(job_id="j2", **SLEEPER)  # who asks meanwhile wakes it
    cards.there[1] = card(1, 2)
    for _ in range(2):  # it rests already: that is no refusal
        neuron.service.sleep_model("m", "j-again")
        state = gateway.wait_status("asleep")
    cards.there = [card(0, 2), card(1, 5), host(83)]
    assert state.sleep_refusal.job_id == "j-sleep"
    assert (state.memory_bytes, state.host_memory_bytes) == (1 * GB, 17 * GB)
    assert read_specs(gateway.client, "n1") == []  # the next life does not load it
    neuron.load(job_id="j3", **SLEEPER, status=None)
    wait_until(lambda: gateway.replica().failure is not None)
    state = gateway.wait_status("asleep", job_id="j3")
    assert state.failure.code == "does_not_fit"
    assert "needs 17.00 GB more on cuda:1 to wake, and 5.00 GB are free" in state.failure.message
    cards.there[1] = card(1, 19)
    state = neuron.load(job_id="j4", **SLEEPER)
    assert (state.devices, state.memory_bytes) == (["cuda:1"], 18 * GB)
    assert (state.host_memory_bytes, state.failure) == (0, None)
    assert pids() == before
    assert neuron.answers()
    neuron.service.sleep_model("m", "j-sleep")
    gateway.wait_status("asleep")
    neuron.load(job_id="j5")  # another spec
    assert pids() != before


@pytest.mark.parametrize("end", ["unload", "unload asleep", "crash_sleep", "kill asleep"])
def test_what_ends_leaves_nothing(
    end: str, neuron: TestNeuron, cards: Machine, gateway: Any
) -> None:
    neuron.load(**SLEEPER, crash_sleep=float(end == "crash_sleep"))
    neuron.service.sleep_model("m", "j-sleep")
    if end.endswith("asleep"):
        gateway.wait_status("asleep")
    if end.startswith("kill"):
        running_engines()[0].kill()
    if end.startswith("unload"):
        neuron.service.unload_model("m")
    wait_until(lambda: gateway.replica() is None and not running_engines())
    assert [one.reserved_bytes for one in gateway.heartbeat().devices] == [0, 0, 0]
    neuron.load(**SLEEPER)


def test_one_dead_at_waking_restarts(neuron: TestNeuron, cards: Machine, gateway: Any) -> None:
    neuron.load(**SLEEPER, crash_wake=1)
    neuron.service.sleep_model("m", "j-sleep")
    gateway.wait_status("asleep")
    assert neuron.load(job_id="j2", **SLEEPER, crash_wake=1).num_restarts == 1


@pytest.mark.parametrize(
    ("host_gb", "needs_gb", "sleeps"), [(100, 15, True), (20, 15, False), (100, 19.5, False)]
)
def test_models_that_make_room_sleep_where_that_does(
    neuron: TestNeuron, cards: Machine, gateway: Any, host_gb: int, needs_gb: float, sleeps: bool
) -> None:
    neuron.load("old", **SLEEPER)
    cards.there = [card(0, 2), card(1, 2), host(host_gb)]  # the driver's word
    neuron.load("new", needs_gb=needs_gb, devices=["cuda:1"], evict=["old"], status=None)
    if sleeps:
        gateway.wait_status("asleep", "old")
    else:
        neuron.wait_gone("old")
    cards.there[1] = card(1, 19 if sleeps else 20)
    gateway.wait_status("ready", "new")
