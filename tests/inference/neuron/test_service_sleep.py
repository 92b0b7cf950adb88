"""Models fall asleep and wake: requests are not lost, no memory is reserved twice."""

from __future__ import annotations

from typing import Any

import pytest

from inference.neuron.replicas.retries import SpecStore
from inference.protocol.events import Finished
from tests.inference.neuron.conftest import TestNeuron, failure_of, running_engines, wait_until
from tests.inference.neuron.devices import GB, Machine, card, host

pytestmark = pytest.mark.slow

SLEEPER = {"takes_gb": 18, "asleep_gb": 1, "host_gb": 17, "sleep_s": 0.3}


def pids() -> list[int]:
    return [engine.pid for engine in running_engines()]


def test_it_sleeps_and_wakes_in_the_same_process(
    neuron: TestNeuron, cards: Machine, gateway: Any
) -> None:
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
    assert SpecStore(gateway.client, neuron="n1").read() == []  # the next life does not load it
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
def test_one_that_is_unloaded_or_dies_leaves_nothing(
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


def test_one_that_dies_as_it_wakes_is_started_anew(
    neuron: TestNeuron, cards: Machine, gateway: Any
) -> None:
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
    """Where the host is full or too much stays behind, they are unloaded."""
    neuron.load("old", **SLEEPER)
    cards.there = [card(0, 2), card(1, 2), host(host_gb)]  # the driver's word
    neuron.load("new", needs_gb=needs_gb, devices=["cuda:1"], evict=["old"], status=None)
    if sleeps:
        gateway.wait_status("asleep", "old")
    else:
        neuron.wait_gone("old")
    cards.there[1] = card(1, 19 if sleeps else 20)
    gateway.wait_status("ready", "new")
