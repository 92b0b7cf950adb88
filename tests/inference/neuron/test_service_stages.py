"""Stages that a neuron holds for engines of other neurons: ordered, reported, released, gone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from inference.neuron.replicas import held_stages
from inference.neuron.replicas.retries import SpecStore
from inference.protocol.heartbeat import HeldStage
from inference.protocol.load import LinkIdentity, StageOf, StageSpec
from tests.inference.neuron.conftest import TestNeuron, running_engines, wait_until
from tests.inference.neuron.devices import GB, Machine, card, host

pytestmark = pytest.mark.slow

IDENTITY = LinkIdentity(certificate="its certificate", private_key="its secret")
OF = StageOf(index=1, engine_neuron="far", engine_certificate="the engine's")
OWN = StageSpec(
    device="cuda:1", layers=(4, 6), memory_bytes=12 * GB, neuron="n1", certificate="mine"
)
STAGES = [
    StageSpec(device="cuda:0", layers=(0, 4), memory_bytes=90 * GB),
    OWN,
    StageSpec(device="cuda:0", layers=(6, 8), memory_bytes=90 * GB, neuron="other"),
]


class Holder(TestNeuron):
    def order(self, status: str | None = None, **changes: Any) -> Any:
        """Returns its only stage once it has that status, as the heartbeat reports it."""
        stage = {"stages": STAGES, "stage_of": OF, "link_identity": IDENTITY}
        self.service.load_model(self.spec(**(stage | changes)))
        return status and self.held(status)

    def held(self, status: str) -> HeldStage:
        found: list[HeldStage] = []

        def is_so() -> bool:
            found[:] = [one for one in self.gateway.heartbeat().stages if one.status == status]
            return bool(found)

        wait_until(is_so)
        (stage,) = found
        return stage

    def reserved(self, device: int) -> int:
        return self.gateway.heartbeat().devices[device].reserved_bytes

    def wait_nothing(self) -> None:
        """Waits until no process, no memory and no report is left."""
        wait_until(lambda: not self.gateway.heartbeat().stages and not running_engines())
        wait_until(lambda: not any(map(self.reserved, range(3))))


@pytest.fixture
def neuron(make_service: Any, fake_spec: Any, gateway: Any) -> Holder:
    made = Holder(make_service, fake_spec, gateway)
    cards = Machine(card(0, 6), card(1, 20), host(100))
    made.options = {"discovery": cards, "stage_host": "10.0.0.5", "silence_limit_s": 5.0}
    return made


def test_a_stage_reserves_its_own_memory_and_listens(
    neuron: Holder, gateway: Any, redis_db: Any, caplog: pytest.LogCaptureFixture
) -> None:
    neuron.order(stage_of=msgspec.structs.replace(OF, index=3))
    assert not gateway.heartbeat().stages and "names none of its stages" in caplog.text
    stage = neuron.order("listening")
    assert (stage.model, stage.job_id, stage.order) == ("m", "j1", "ordered")
    assert (stage.engine_neuron, stage.index, stage.num_stages) == ("far", 1, 3)
    assert (stage.layers, stage.device) == ((4, 6), "cuda:1")
    assert stage.address == "127.0.0.1:7400"
    assert stage.memory_bytes == neuron.reserved(1) == 20 * GB, "all that it may take"
    assert neuron.reserved(0) == 0, "the stages of others are theirs"
    heartbeat = gateway.heartbeat()
    assert heartbeat.stage_host == "10.0.0.5" and not heartbeat.replicas
    assert "secret" not in str(heartbeat)
    assert not SpecStore(redis_db, neuron="n1").read(), "no restart holds it again"
    neuron.load("whole", devices=["cuda:0"])  # it keeps no turn
    neuron.order()  # the same order again changes nothing
    assert neuron.held("listening").since_unix_s == stage.since_unix_s
    neuron.order(job_id="j2")
    wait_until(lambda: neuron.held("listening").job_id == "j2" and len(running_engines()) == 2)


@pytest.mark.parametrize("end", ["released", "released ready", "leaves", "kill", "suspend"])
def test_a_stage_that_is_released_or_ends_leaves_nothing(neuron: Holder, end: str) -> None:
    """It ends with its engine and with its process."""
    neuron.order(joins=int(end != "released"), leaves=int(end == "leaves"), takes_gb=7)
    if end.startswith("released"):
        status = "ready" if end.endswith("ready") else "listening"
        held_gb = 7 if end.endswith("ready") else 20
        wait_until(lambda: neuron.held(status).memory_bytes == held_gb * GB)
        neuron.service.release_stages("m", "another job")
        neuron.service.release_stages("other", "j1")
        neuron.held(status)
        neuron.service.release_stages("m", "j1")
    elif end != "leaves":
        neuron.held("ready")
        (process,) = running_engines()
        getattr(process, end)()
    neuron.wait_nothing()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"load_fails": 1}, "does_not_fit"),
        ({"crash_load": 1}, "engine_crashed"),
        (
            {"stages": [msgspec.structs.replace(OWN, memory_bytes=25 * GB)] * 3},
            "exceeds_device",
        ),
    ],
    ids=["refused", "crashed", "no room"],
)
def test_a_refused_stage_reports_why_and_holds_no_memory(
    neuron: Holder, monkeypatch: pytest.MonkeyPatch, changes: Any, code: str
) -> None:
    assert neuron.order("failed", **changes).failure.code == code
    assert neuron.reserved(1) == 0 and not running_engines()
    stage = neuron.order("listening", job_id="j2")
    assert stage.job_id == "j2", "the next order takes its place"
    neuron.order("failed", **changes, job_id="j3")
    monkeypatch.setattr(held_stages, "FAILURE_KEPT_S", 0.0)
    neuron.wait_nothing()


def test_an_engine_with_stages_elsewhere_is_not_restarted(
    neuron: Holder, gateway: Any, redis_db: Any
) -> None:
    """Its own stage alone is reserved; a restart of the neuron does not load it either."""
    own = StageSpec(device="cuda:1", layers=(0, 4), memory_bytes=5 * GB)
    far = msgspec.structs.replace(OWN, neuron="far", address="10.0.0.9:7400")
    neuron.load(crash_after=3, takes_gb=1, stages=[own, far], link_identity=IDENTITY)
    assert not SpecStore(redis_db, neuron="n1").read()
    neuron.ask()
    state = gateway.wait_status("failed")
    assert state.failure.code == "engine_crashed" and state.num_restarts == 0
    wait_until(lambda: not running_engines())


def test_what_the_order_names_leaves_its_neuron_first_if_it_is_idle(
    neuron: Holder, gateway: Any
) -> None:
    neuron.load("old", takes_gb=18, context=1_000_000)
    request_id = neuron.running(model="old", max_tokens=100_000)
    failure = neuron.order("failed", evict=["old"]).failure
    assert (failure.code, failure.is_permanent) == ("lost_its_room", False)
    assert gateway.replica("old").status == "ready"
    neuron.end(request_id)
    wait_until(lambda: gateway.replica("old").stats.in_flight == 0)
    neuron.order("listening", job_id="j2", evict=["old", "long-gone"])
    neuron.wait_gone("old")
    wait_until(lambda: len(running_engines()) == 1)
