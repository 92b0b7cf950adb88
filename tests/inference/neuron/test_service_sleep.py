"""Models fall asleep and wake: requests are not lost, no memory is reserved twice."""

from __future__ import annotations

from typing import Any

import pytest

from inference.neuron.replicas.retries import SpecStore
from inference.protocol.events import Finished
from inference.protocol.load import LoadSpec
from tests.inference.neuron.conftest import TestNeuron, failure_of, running_engines, wait_until
from tests.inference.neuron.devices import GB, Machine, card, host

pytestmark = pytest.mark.slow

SLEEPER = {"takes_gb": 18, "asleep_gb": 1, "host_gb": 17}


@pytest.fixture
def cards() -> Machine:
    return Machine(card(0, 2), card(1, 20), host(100))


@pytest.fixture
def neuron(neuron: TestNeuron, cards: Machine) -> TestNeuron:
    neuron.options = {"discovery": cards}
    return neuron


def asleep(neuron: TestNeuron, cards: Machine, model: str = "m", **options: Any) -> LoadSpec:
    spec = neuron.spec(model, **SLEEPER, **options)
    neuron.service.load_model(spec)
    neuron.gateway.wait_status("ready", model)
    cards.there = [card(0, 2), card(1, 2), host(100)]
    neuron.service.sleep_model(model, "j-sleep")
    neuron.gateway.wait_status("asleep", model)
    cards.there = [card(0, 2), card(1, 19), host(83)]
    return spec


def pids() -> list[int]:
    return [engine.pid for engine in running_engines()]


def test_it_sleeps_and_wakes_in_the_same_process(
    neuron: TestNeuron, cards: Machine, gateway: Any
) -> None:
    asleep(neuron, cards)
    before, state = pids(), gateway.replica()
    assert (state.memory_bytes, state.host_memory_bytes) == (1 * GB, 17 * GB)
    assert SpecStore(gateway.client, neuron="n1").read() == []  # the next life does not load it
    cards.there[1] = card(1, 5)
    neuron.load(job_id="j2", **SLEEPER, status=None)
    wait_until(lambda: gateway.replica().failure is not None)
    state = gateway.wait_status("asleep")
    assert (state.job_id, state.failure.code) == ("j2", "does_not_fit")
    assert "needs 17.00 GB more on cuda:1 to wake, and 5.00 GB are free" in state.failure.message
    cards.there[1] = card(1, 19)
    state = neuron.load(job_id="j3", **SLEEPER)
    assert (state.job_id, state.devices, state.memory_bytes) == ("j3", ["cuda:1"], 18 * GB)
    assert (state.host_memory_bytes, state.failure) == (0, None)
    assert pids() == before
    assert neuron.answers()


def test_requests_that_run_are_answered_first_and_who_asks_meanwhile_wakes_it(
    neuron: TestNeuron, gateway: Any
) -> None:
    neuron.load(**SLEEPER, sleep_s=0.3)
    before = pids()
    request_id = neuron.running(max_tokens=30)
    neuron.service.sleep_model("m", "j-sleep")
    # Gateways place it again: no engine has accepted it.
    assert failure_of(neuron.ask(max_tokens=3)).code == "model_not_loaded"
    assert isinstance(gateway.wait_end(request_id)[-1], Finished)
    neuron.load(job_id="j2", **SLEEPER, sleep_s=0.3, status=None)
    wait_until(lambda: gateway.replica().job_id == "j2")
    gateway.wait_status("ready")
    assert pids() == before


def test_one_that_cannot_sleep_serves_on_and_reports_it(
    neuron: TestNeuron, cards: Machine, gateway: Any
) -> None:
    neuron.load(**SLEEPER)
    cards.there[2] = host(20)
    neuron.service.sleep_model("m", "j-sleep")
    wait_until(lambda: gateway.replica().sleep_refusal is not None)
    state = gateway.replica()
    assert (state.status, state.sleep_refusal.job_id) == ("ready", "j-sleep")
    assert "no room for 17,000,000,000 bytes" in state.sleep_refusal.failure.message
    cards.there[2] = host(100)
    for _ in range(2):  # it rests already: that is no refusal
        neuron.service.sleep_model("m", "j-again")
        state = gateway.wait_status("asleep")
    assert state.sleep_refusal.job_id == "j-sleep"


def test_it_is_replaced_or_unloaded_asleep_and_while_it_falls_asleep(
    neuron: TestNeuron, cards: Machine, gateway: Any
) -> None:
    asleep(neuron, cards)
    before = pids()
    assert neuron.load(job_id="j2").job_id == "j2", "another spec"
    assert pids() != before
    neuron.service.unload_model("m")
    neuron.wait_gone()
    cards.there = [card(0, 2), card(1, 20), host(100)]
    asleep(neuron, cards)
    neuron.service.unload_model("m")
    wait_until(lambda: gateway.replica() is None and not running_engines())
    cards.there = [card(0, 2), card(1, 20), host(100)]
    neuron.load(**SLEEPER, sleep_s=0.3)
    neuron.service.sleep_model("m", "j-sleep")
    neuron.service.unload_model("m")
    wait_until(lambda: gateway.replica() is None and not running_engines())
    assert gateway.heartbeat().devices[2].reserved_bytes == 0


@pytest.mark.parametrize("dies", ["falling asleep", "asleep", "waking"])
def test_an_engine_that_dies_is_as_good_as_unloaded_or_started_anew(
    dies: str, neuron: TestNeuron, cards: Machine, gateway: Any
) -> None:
    if dies == "waking":
        asleep(neuron, cards, crash_wake=1)
        state = neuron.load(job_id="j2", **SLEEPER, crash_wake=1)
        assert (state.job_id, state.num_restarts) == ("j2", 1)
        return
    neuron.load(**SLEEPER, crash_sleep=float(dies == "falling asleep"))
    neuron.service.sleep_model("m", "j-sleep")
    if dies == "asleep":
        gateway.wait_status("asleep")
        running_engines()[0].kill()
    neuron.wait_gone()
    assert [one.reserved_bytes for one in gateway.heartbeat().devices] == [0, 0, 0]
    neuron.load(**SLEEPER)


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
