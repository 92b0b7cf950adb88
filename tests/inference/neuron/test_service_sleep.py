"""Models fall asleep and wake: requests are not lost, no memory is reserved twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from inference.neuron.loads.queue import LoadQueue
from inference.neuron.replicas.by_model import SpecStore
from inference.neuron.service import NeuronService
from inference.protocol.load import LoadSpec
from inference.protocol.load_report import AsleepBytes
from tests.inference.neuron.devices import GB, card, host
from tests.inference.neuron.fake_engines import running_engines
from tests.inference.neuron.loads.test_queue import Machine, begun, load_of, loaded
from tests.inference.neuron.test_service_memory import Host, needing

pytestmark = pytest.mark.slow

MakeService = Callable[..., NeuronService]
MakeSpec = Callable[..., LoadSpec]

SLEEPER = {"takes_gb": 18, "asleep_gb": 1, "host_gb": 17}


@pytest.fixture
def cards() -> Host:
    return Host(card(0, 2), card(1, 20), host(100))


@pytest.fixture
def service(make_service: MakeService, cards: Host) -> NeuronService:
    return make_service(discovery=cards)


def asleep(service: NeuronService, cards: Host, spec: LoadSpec, gateway: Any) -> None:
    service.load_model(spec)
    gateway.wait_status("ready", spec.model)
    cards.there = [card(0, 2), card(1, 2), host(100)]
    service.sleep_model(spec.model, "j-sleep")
    gateway.wait_status("asleep", spec.model)
    cards.there = [card(0, 2), card(1, 19), host(83)]


def test_it_sleeps_and_wakes_in_the_same_process(
    service: NeuronService, cards: Host, fake_spec: MakeSpec, gateway: Any
) -> None:
    spec = fake_spec(**SLEEPER)
    asleep(service, cards, spec, gateway)
    (engine,) = running_engines()
    state = gateway.replica()
    assert (state.memory_bytes, state.host_memory_bytes) == (1 * GB, 17 * GB)
    assert SpecStore(gateway.client, neuron="n1").read() == []  # the next life does not load it
    service.load_model(msgspec.structs.replace(spec, job_id="j2"))
    state = gateway.wait_status("ready")
    assert (state.job_id, state.devices, state.memory_bytes) == ("j2", ["cuda:1"], 18 * GB)
    assert state.host_memory_bytes == 0
    assert [one.pid for one in running_engines()] == [engine.pid]
    request_id = gateway.submit(max_tokens=3)
    service.drain_inbox()
    assert gateway.wait_end(request_id)[-1].__class__.__name__ == "Finished"


def test_requests_that_run_are_answered_before_it_sleeps(
    service: NeuronService, fake_spec: MakeSpec, gateway: Any
) -> None:
    service.load_model(fake_spec(**SLEEPER))
    gateway.wait_status("ready")
    request_id = gateway.submit(max_tokens=30)
    service.drain_inbox()
    gateway.wait_events(request_id, lambda events: len(events) > 1)
    service.sleep_model("m", "j-sleep")
    late = gateway.submit(max_tokens=3)  # gateways place it again: no engine has accepted it
    service.drain_inbox()
    assert gateway.wait_end(late)[-1].failure.code == "model_not_loaded"
    gateway.wait_status("asleep")
    assert gateway.wait_end(request_id)[-1].__class__.__name__ == "Finished"


def test_who_asks_while_it_falls_asleep_wakes_it(
    service: NeuronService, fake_spec: MakeSpec, gateway: Any, wait_until: Any
) -> None:
    spec = fake_spec(**SLEEPER, sleep_s=0.3)
    service.load_model(spec)
    gateway.wait_status("ready")
    (engine,) = running_engines()
    service.sleep_model("m", "j-sleep")
    service.load_model(msgspec.structs.replace(spec, job_id="j2"))
    wait_until(lambda: gateway.replica().job_id == "j2")
    gateway.wait_status("ready")
    assert [one.pid for one in running_engines()] == [engine.pid]


def test_one_that_cannot_sleep_serves_on_and_reports_it(
    service: NeuronService, cards: Host, fake_spec: MakeSpec, gateway: Any, wait_until: Any
) -> None:
    service.load_model(fake_spec(**SLEEPER))
    gateway.wait_status("ready")
    cards.there[2] = host(20)
    service.sleep_model("m", "j-sleep")
    wait_until(lambda: gateway.replica().sleep_refusal is not None)
    state = gateway.replica()
    assert (state.status, state.sleep_refusal.job_id) == ("ready", "j-sleep")
    assert "no room for 17,000,000,000 bytes" in state.sleep_refusal.failure.message
    cards.there[2] = host(100)
    for _ in range(2):  # it rests already: that is no refusal
        service.sleep_model("m", "j-again")
        state = gateway.wait_status("asleep")
    assert state.sleep_refusal.job_id == "j-sleep"


def test_it_is_unloaded_asleep_and_while_it_falls_asleep(
    service: NeuronService, cards: Host, fake_spec: MakeSpec, gateway: Any, wait_until: Any
) -> None:
    asleep(service, cards, fake_spec(**SLEEPER), gateway)
    service.unload_model("m")
    wait_until(lambda: gateway.replica() is None and not running_engines())
    cards.there = [card(0, 2), card(1, 20), host(100)]
    service.load_model(fake_spec(**SLEEPER, sleep_s=0.3))
    gateway.wait_status("ready")
    service.sleep_model("m", "j-sleep")
    service.unload_model("m")
    wait_until(lambda: gateway.replica() is None and not running_engines())
    assert gateway.heartbeat().devices[2].reserved_bytes == 0


def test_another_spec_replaces_one_that_sleeps(
    service: NeuronService, cards: Host, fake_spec: MakeSpec, gateway: Any
) -> None:
    asleep(service, cards, fake_spec(**SLEEPER), gateway)
    (engine,) = running_engines()
    service.load_model(fake_spec(job_id="j2"))
    assert gateway.wait_status("ready").job_id == "j2"
    assert [one.pid for one in running_engines()] != [engine.pid]


@pytest.mark.parametrize("dies", ["crash_sleep", "killed asleep"])
def test_an_engine_that_dies_asleep_is_as_good_as_unloaded(
    dies: str, service: NeuronService, fake_spec: MakeSpec, gateway: Any, wait_until: Any
) -> None:
    service.load_model(fake_spec(**SLEEPER, crash_sleep=float(dies == "crash_sleep")))
    gateway.wait_status("ready")
    service.sleep_model("m", "j-sleep")
    if dies != "crash_sleep":
        gateway.wait_status("asleep")
        running_engines()[0].kill()
    wait_until(lambda: gateway.replica() is None)
    assert [one.reserved_bytes for one in gateway.heartbeat().devices] == [0, 0, 0]
    service.load_model(fake_spec(**SLEEPER))
    gateway.wait_status("ready")


def test_an_engine_that_dies_while_it_wakes_is_started_anew(
    service: NeuronService, cards: Host, fake_spec: MakeSpec, gateway: Any
) -> None:
    spec = fake_spec(**SLEEPER, crash_wake=1)
    asleep(service, cards, spec, gateway)
    service.load_model(msgspec.structs.replace(spec, job_id="j2"))
    state = gateway.wait_status("ready")
    assert (state.job_id, state.num_restarts) == ("j2", 1)


def test_it_sleeps_on_where_there_is_no_room_and_reports_it(
    service: NeuronService, cards: Host, fake_spec: MakeSpec, gateway: Any, wait_until: Any
) -> None:
    spec = fake_spec(**SLEEPER)
    asleep(service, cards, spec, gateway)
    cards.there[1] = card(1, 5)
    service.load_model(msgspec.structs.replace(spec, job_id="j2"))
    wait_until(lambda: gateway.replica().failure is not None)
    state = gateway.wait_status("asleep")
    assert (state.job_id, state.failure.code) == ("j2", "does_not_fit")
    assert "needs 17.00 GB more on cuda:1 to wake, and 5.00 GB are free" in state.failure.message
    cards.there[1] = card(1, 19)
    service.load_model(msgspec.structs.replace(spec, job_id="j3"))
    assert gateway.wait_status("ready").failure is None


def test_models_that_make_room_sleep_where_the_host_has_room(
    service: NeuronService, cards: Host, fake_spec: MakeSpec, gateway: Any, wait_until: Any
) -> None:
    service.load_model(fake_spec("old", **SLEEPER))
    gateway.wait_status("ready", "old")
    cards.there[1] = card(1, 2)  # the driver's word
    service.load_model(needing(fake_spec("new"), 15, devices=["cuda:1"], evict=["old"]))
    gateway.wait_status("asleep", "old")
    cards.there[1] = card(1, 19)
    gateway.wait_status("ready", "new")


@pytest.mark.parametrize("why", ["the host is full", "too much stays behind"])
def test_they_are_unloaded_where_sleeping_would_not_do(
    why: str,
    service: NeuronService,
    cards: Host,
    fake_spec: MakeSpec,
    gateway: Any,
    wait_until: Any,
) -> None:
    service.load_model(fake_spec("old", **SLEEPER))
    gateway.wait_status("ready", "old")
    is_full = why == "the host is full"
    cards.there = [card(0, 2), card(1, 2), host(20 if is_full else 100)]
    needs = 15 if is_full else 19.5
    service.load_model(needing(fake_spec("new"), needs, devices=["cuda:1"], evict=["old"]))
    wait_until(lambda: gateway.replica("old") is None)
    cards.there[1] = card(1, 20)
    gateway.wait_status("ready", "new")


def test_what_makes_room_for_one_that_wakes(
    service: NeuronService, cards: Host, fake_spec: MakeSpec, gateway: Any
) -> None:
    spec = fake_spec("a", **SLEEPER)
    asleep(service, cards, spec, gateway)
    service.load_model(msgspec.structs.replace(fake_spec("b", **SLEEPER), devices=["cuda:1"]))
    gateway.wait_status("ready", "b")
    cards.there[1] = card(1, 1)
    service.load_model(msgspec.structs.replace(spec, devices=["cuda:1"], evict=["b"]))
    gateway.wait_status("asleep", "b")
    cards.there[1] = card(1, 18)
    assert gateway.wait_status("ready", "a").memory_bytes == 18 * GB


def test_weights_that_fall_asleep_are_promised_their_part_of_the_host() -> None:
    machine = Machine(card(0, 20), host(60, total_gb=100))
    queue = LoadQueue(machine)
    first, second = load_of(12), load_of(3)
    for one, took_gb in ((first, 12), (second, 3)):
        begun(queue, one)
        loaded(queue, one, took_gb)
    assert queue.host_bytes() == 50 * GB  # a tenth stays with everybody else
    assert queue.keep_host_room(first, 40 * GB)
    assert not queue.keep_host_room(first, 1)  # it has its part
    assert queue.host_bytes() == 10 * GB
    assert not queue.keep_host_room(second, 11 * GB)
    machine.there[1] = host(20, total_gb=100)  # they are there
    queue.fell_asleep(first, AsleepBytes(device_bytes=GB, host_bytes=40 * GB))
    assert queue.host_bytes() == 10 * GB
    assert queue.kept_bytes(first) == GB
    queue.begin_waking(first)
    assert queue.kept_bytes(first) == 12 * GB
    machine.there[1] = host(60, total_gb=100)
    queue.awake(first)
    assert queue.host_bytes() == 50 * GB
