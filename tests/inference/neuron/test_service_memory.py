"""A neuron's loads take turns, keep to devices, make room for each other and never overcommit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inference.neuron.replicas.by_model import SpecStore
from inference.protocol.load import StageSpec
from inference.protocol.load_progress import LoadStage
from inference.settings.neuron import MemoryLimits
from tests.inference.neuron.conftest import TestNeuron, wait_until
from tests.inference.neuron.devices import GB, Machine, card, host
from tests.inference.neuron.fake_engines import running_engines

pytestmark = pytest.mark.slow


@pytest.fixture
def cards() -> Machine:
    return Machine(card(0, 6), card(1, 20), host(100))


@pytest.fixture
def neuron(neuron: TestNeuron, cards: Machine) -> TestNeuron:
    neuron.options = {"discovery": cards}
    return neuron


def test_a_neuron_uses_no_more_of_a_device_than_its_operator_lets_it(
    neuron: TestNeuron, gateway: Any
) -> None:
    limits = MemoryLimits((("cuda:1", 10 * GB), ("cuda:7", GB)))
    neuron.options["memory_limits"] = limits
    heartbeat = neuron.service.heartbeat()
    _, limited, _ = heartbeat.devices
    assert (limited.free_memory_bytes, limited.total_memory_bytes) == (10 * GB, 10 * GB)
    assert limited.installed_memory_bytes == 24 * GB
    assert [text for text in heartbeat.host.problems if "cuda:7" in text]
    failure = neuron.refused(devices=["cuda:1"], kv_memory_bytes=11 * GB)
    assert (failure.code, failure.is_permanent) == ("exceeds_device", True)
    assert "10.00 GB in all by HELEXA_MEMORY_LIMIT" in failure.message
    assert not running_engines(), "none is started for it"
    state = neuron.load(job_id="j2", needs_gb=9)
    assert (state.devices, state.report.device) == (["cuda:1"], "cuda:1")


def test_cold_loads_take_turns_and_their_memory_is_not_free_for_others(
    neuron: TestNeuron, gateway: Any
) -> None:
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


def test_a_model_that_does_not_fit_is_weighed_unless_it_is_divided(
    neuron: TestNeuron, three_layers: Path
) -> None:
    big = {"source": f"path:{three_layers}", "file": None, "needs_gb": 23}
    costs = neuron.refused("big", **big).costs
    assert costs is not None and len(costs.layers) == 3
    stages = [
        StageSpec(device="cuda:0", layers=(0, 1), memory_bytes=GB),
        StageSpec(device="cuda:1", layers=(1, 3), memory_bytes=23 * GB),
    ]
    failure = neuron.refused("parts", **big, stages=stages)
    assert (failure.code, failure.costs) == ("does_not_fit", None)


def test_evicted_models_leave_first(neuron: TestNeuron, cards: Machine, gateway: Any) -> None:
    neuron.load("old", takes_gb=18)
    cards.there[1] = card(1, 2)  # the driver's word
    neuron.load("new", needs_gb=15, devices=["cuda:1"], evict=["old", "long-gone"], status=None)
    neuron.wait_gone("old")
    cards.there[1] = card(1, 20)
    gateway.wait_status("ready", "new")
    assert len(running_engines()) == 1
    (stored,) = SpecStore(gateway.client, neuron="n1").read()
    assert (stored.model, stored.evict) == ("new", [])  # the next instance evicts nothing


def test_a_model_that_got_busy_is_not_unloaded_and_the_load_reports_it(
    neuron: TestNeuron, gateway: Any
) -> None:
    neuron.load("old", context=1_000_000)
    request_id = neuron.running(model="old", max_tokens=100_000)
    failure = neuron.refused("new", evict=["old"])
    assert (failure.code, failure.is_permanent) == ("lost_its_room", False)
    assert "old" in failure.message
    assert gateway.replica("old").status == "ready"
    neuron.end(request_id)


def test_an_engine_that_died_comes_back_within_what_it_had(
    neuron: TestNeuron, gateway: Any
) -> None:
    neuron.load(takes_gb=7, crash_after=3)
    neuron.ask(max_tokens=50)
    wait_until(lambda: gateway.replica().num_restarts == 1 and gateway.replica().status == "ready")
    state = gateway.replica()
    assert state.devices == ["cuda:1"]
    assert state.report.context_reason.endswith(f"{7 * GB} are mine")


def test_a_restart_loads_what_was_used_last_first(neuron: TestNeuron, gateway: Any) -> None:
    """Where not all of it has room any more."""
    used = {"a": None, "b": 20.0, "c": 30.0, "d": 10.0}
    store = SpecStore(gateway.client, neuron="n1")
    store.write(
        [
            neuron.spec(name, needs_gb=15, devices=["cuda:0"], last_used_unix_s=last_used)
            for name, last_used in used.items()
        ]
    )
    neuron.start(discovery=Machine(card(0, 20), host(100)))
    assert gateway.wait_status("ready", "c").last_used_unix_s == 30.0
    assert {gateway.replica(name).status for name in ("a", "b", "d")} == {"recovering"}
    kept = {spec.model: spec.last_used_unix_s for spec in store.read()}
    assert kept == used, "for the instance after this one"
