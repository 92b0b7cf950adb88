"""Stages that a neuron holds for engines of other neurons: ordered, reported, released, gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from inference.neuron.replicas import held_stages
from inference.neuron.replicas.by_model import SpecStore
from inference.neuron.service import NeuronService
from inference.protocol.heartbeat import HeldStage
from inference.protocol.load import LinkIdentity, LoadSpec, StageOf, StageSpec
from tests.inference.neuron.devices import GB, card, host
from tests.inference.neuron.fake_engines import running_engines
from tests.inference.neuron.test_service_memory import Host

pytestmark = pytest.mark.slow

MakeService = Callable[..., NeuronService]
IDENTITY = LinkIdentity(certificate="its certificate", private_key="its secret")
OF = StageOf(index=1, engine_neuron="far", engine_certificate="the engine's")
STAGES = [
    StageSpec(device="cuda:0", layers=(0, 4), memory_bytes=90 * GB),
    StageSpec(
        device="cuda:1", layers=(4, 6), memory_bytes=12 * GB, neuron="n1", certificate="mine"
    ),
    StageSpec(device="cuda:0", layers=(6, 8), memory_bytes=90 * GB, neuron="other"),
]


@pytest.fixture
def service(make_service: MakeService) -> NeuronService:
    return make_service(discovery=Host(card(0, 6), card(1, 20), host(100)), stage_host="10.0.0.5")


@pytest.fixture
def order(fake_spec: Any) -> Callable[..., LoadSpec]:
    def make(of: StageOf = OF, **options: Any) -> LoadSpec:
        spec = fake_spec(**options)
        return msgspec.structs.replace(spec, stages=STAGES, stage_of=of, link_identity=IDENTITY)

    return make


@pytest.fixture
def held(gateway: Any, wait_until: Any) -> Callable[..., HeldStage]:
    """Waits for the only stage to have that status, as the heartbeat reports it."""

    def wait(status: str) -> HeldStage:
        found: list[HeldStage] = []

        def is_so() -> bool:
            found[:] = [one for one in gateway.heartbeat().stages if one.status == status]
            return bool(found)

        wait_until(is_so)
        (stage,) = found
        return stage

    return wait


@pytest.fixture
def wait_nothing(service: NeuronService, gateway: Any, wait_until: Any) -> Callable[[], None]:
    """Waits until no process, no memory and no report is left."""

    def wait() -> None:
        wait_until(lambda: not gateway.heartbeat().stages and not running_engines())
        wait_until(lambda: not any(one.reserved_bytes for one in gateway.heartbeat().devices))

    return wait


def reserved(gateway: Any, device: int) -> int:
    reported: int = gateway.heartbeat().devices[device].reserved_bytes
    return reported


def test_a_stage_reserves_its_own_memory_and_listens(
    service: NeuronService, order: Any, held: Any, gateway: Any, redis_db: Any, wait_until: Any
) -> None:
    service.load_model(order())
    stage = held("listening")
    assert (stage.model, stage.job_id, stage.order) == ("m", "j1", "ordered")
    assert (stage.engine_neuron, stage.index, stage.num_stages) == ("far", 1, 3)
    assert (stage.layers, stage.device) == ((4, 6), "cuda:1")
    assert stage.address == "127.0.0.1:7400"
    assert stage.memory_bytes == reserved(gateway, 1) == 20 * GB, "all that it may take"
    assert reserved(gateway, 0) == 0, "the stages of others are theirs"
    heartbeat = gateway.heartbeat()
    assert heartbeat.stage_host == "10.0.0.5" and not heartbeat.replicas
    assert "secret" not in str(heartbeat)
    assert not SpecStore(redis_db, neuron="n1").read(), "no restart holds it again"


def test_once_its_engine_has_come_it_keeps_what_it_took(
    service: NeuronService, order: Any, held: Any, gateway: Any, wait_until: Any
) -> None:
    service.load_model(order(joins=1, takes_gb=7))
    held("ready")
    wait_until(lambda: held("ready").memory_bytes == 7 * 10**9)


def test_a_released_stage_leaves_nothing(
    service: NeuronService, order: Any, held: Any, wait_nothing: Any
) -> None:
    for joins in (0, 1):
        service.load_model(order(joins=joins, job_id=f"j{joins}"))
        held("ready" if joins else "listening")
        service.release_stages("m", "another job")
        service.release_stages("other", f"j{joins}")
        held("ready" if joins else "listening")
        service.release_stages("m", f"j{joins}")
        wait_nothing()


def test_a_stage_ends_with_its_engine(
    service: NeuronService, order: Any, wait_nothing: Any, gateway: Any
) -> None:
    service.load_model(order(joins=1, leaves=1))
    wait_nothing()


def test_a_stage_whose_process_is_killed_is_gone(
    service: NeuronService, order: Any, held: Any, wait_nothing: Any
) -> None:
    service.load_model(order(joins=1))
    held("ready")
    for process in running_engines():
        process.kill()
    wait_nothing()


@pytest.mark.parametrize(
    ("options", "code"),
    [({"load_fails": 1}, "does_not_fit"), ({"crash_load": 1}, "engine_crashed")],
    ids=str,
)
def test_a_refused_stage_reports_why_and_holds_no_memory(
    service: NeuronService, order: Any, held: Any, gateway: Any, options: Any, code: str
) -> None:
    service.load_model(order(**options))
    assert held("failed").failure.code == code
    assert reserved(gateway, 1) == 0 and not running_engines()
    service.load_model(order(job_id="j2"))
    assert held("listening").job_id == "j2", "the next order takes its place"


def test_a_stage_without_room_is_refused_before_anything_starts(
    service: NeuronService, order: Any, held: Any
) -> None:
    spec = order(joins=1)
    large = [msgspec.structs.replace(one, memory_bytes=25 * GB) for one in spec.stages]
    service.load_model(msgspec.structs.replace(spec, stages=large))
    assert held("failed").failure.code == "exceeds_device"


def test_the_same_order_again_changes_nothing(
    service: NeuronService, order: Any, held: Any, wait_until: Any
) -> None:
    spec = order()
    service.load_model(spec)
    since = held("listening").since_unix_s
    service.load_model(spec)
    assert held("listening").since_unix_s == since
    service.load_model(order(job_id="j2"))
    wait_until(lambda: held("listening").job_id == "j2" and len(running_engines()) == 1)


def test_a_listening_stage_keeps_no_turn(
    service: NeuronService, order: Any, held: Any, gateway: Any, fake_spec: Any
) -> None:
    service.load_model(order())
    held("listening")
    service.load_model(msgspec.structs.replace(fake_spec("whole"), devices=["cuda:0"]))
    gateway.wait_status("ready", "whole")
    held("listening")


def test_a_stage_that_sends_nothing_any_more_is_killed(
    make_service: MakeService, order: Any, held: Any, gateway: Any, wait_until: Any
) -> None:
    service = make_service(
        discovery=Host(card(0, 6), card(1, 20)), stage_host="h", silence_limit_s=5.0
    )
    service.load_model(order(joins=1))
    held("ready")
    (process,) = running_engines()
    process.suspend()
    wait_until(lambda: not gateway.heartbeat().stages and not running_engines())


def test_a_failure_is_forgotten_after_a_while(
    service: NeuronService,
    order: Any,
    held: Any,
    wait_nothing: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service.load_model(order(load_fails=1))
    held("failed")
    monkeypatch.setattr(held_stages, "FAILURE_KEPT_S", 0.0)
    wait_nothing()


def test_an_order_of_no_stage_is_not_begun(
    service: NeuronService, order: Any, gateway: Any, caplog: pytest.LogCaptureFixture
) -> None:
    service.load_model(order(of=msgspec.structs.replace(OF, index=3)))
    assert not gateway.heartbeat().stages and "names none of its stages" in caplog.text


def test_an_engine_with_stages_elsewhere_is_not_restarted(
    service: NeuronService, fake_spec: Any, gateway: Any, wait_until: Any, redis_db: Any
) -> None:
    """Its own stage alone is reserved; a restart of the neuron does not load it either."""
    spec = fake_spec(crash_after=3, takes_gb=1)
    own = StageSpec(device="cuda:1", layers=(0, 4), memory_bytes=5 * GB)
    far = msgspec.structs.replace(STAGES[1], neuron="far", address="10.0.0.9:7400")
    spec = msgspec.structs.replace(spec, stages=[own, far], link_identity=IDENTITY)
    service.load_model(spec)
    gateway.wait_status("ready")
    assert not SpecStore(redis_db, neuron="n1").read()
    gateway.wait_end(gateway.submit())
    state = gateway.wait_status("failed")
    assert state.failure.code == "engine_crashed" and state.num_restarts == 0
    wait_until(lambda: not running_engines())


def test_what_the_order_names_leaves_its_neuron_first(
    service: NeuronService, order: Any, held: Any, gateway: Any, fake_spec: Any, wait_until: Any
) -> None:
    service.load_model(fake_spec("old", takes_gb=18))
    gateway.wait_status("ready", "old")
    service.load_model(msgspec.structs.replace(order(), evict=["old", "long-gone"]))
    held("listening")
    wait_until(lambda: gateway.replica("old") is None and len(running_engines()) == 1)


def test_a_model_in_use_does_not_leave_for_a_stage(
    service: NeuronService, order: Any, held: Any, gateway: Any, fake_spec: Any
) -> None:
    service.load_model(fake_spec("old", context=1_000_000))
    gateway.wait_status("ready", "old")
    request_id = gateway.submit(model="old", max_tokens=100_000)
    service.drain_inbox()
    gateway.wait_events(request_id, lambda events: len(events) > 2)
    service.load_model(msgspec.structs.replace(order(), evict=["old"]))
    failure = held("failed").failure
    assert (failure.code, failure.is_permanent) == ("lost_its_room", False)
    assert gateway.replica("old").status == "ready"
    gateway.cancel(request_id)
    service.drain_inbox()
    gateway.wait_end(request_id)
