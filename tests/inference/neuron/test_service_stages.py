"""Stages that a neuron holds for engines of other neurons: ordered, reported, released, gone."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from inference.neuron.replicas import held_stages
from inference.neuron.replicas.retries import read_specs
from inference.protocol.heartbeat import HeldStage
from inference.protocol.load import LinkIdentity, StageOf, StageSpec
from tests.inference.neuron.conftest import TestNeuron, running_engines, wait_until
from tests.inference.neuron.devices import GB, Machine
from tests.inference.neuron.fake_engine import POISON_SEED

pytestmark = pytest.mark.slow

IDENTITY = LinkIdentity(certificate="its certificate", private_key="its secret")
OF = StageOf(index=1, engine_neuron="far", engine_certificate="the engine's")
OTHERS = StageSpec(device="cuda:0", layers=(0, 4), memory_bytes=90 * GB)
OWN = StageSpec(
    device="cuda:1", layers=(4, 6), memory_bytes=12 * GB, neuron="n1", certificate="mine"
)
STAGES = [OTHERS, OWN, replace(OTHERS, layers=(6, 8), neuron="other")]


def order(neuron: TestNeuron, status: str | None = None, job_id: str = "j1", **changes: Any) -> Any:
    stage = {"stages": STAGES, "stage_of": OF, "link_identity": IDENTITY}
    neuron.service.load_model(neuron.spec(job_id=job_id, **(stage | changes)))
    return status and held(neuron, status, job_id)


def held(neuron: TestNeuron, status: str, job_id: str = "j1") -> HeldStage:
    """The only one, as the heartbeat reports it."""
    return wait_until(
        lambda: (
            (stages := neuron.gateway.heartbeat().stages)
            and [(one.status, one.job_id) for one in stages] == [(status, job_id)]
            and stages[0]
        )
    )


def reserved(neuron: TestNeuron) -> list[int]:
    return [device.reserved_bytes for device in neuron.gateway.heartbeat().devices]


def wait_nothing(neuron: TestNeuron) -> None:
    wait_until(lambda: not neuron.gateway.heartbeat().stages and not running_engines())
    wait_until(lambda: not any(reserved(neuron)))


@pytest.fixture
def neuron(neuron: TestNeuron, cards: Machine) -> TestNeuron:
    neuron.options |= {"stage_host": "10.0.0.5", "silence_limit_s": 5.0}
    return neuron


def test_a_stage_reserves_its_own_memory_listens_and_is_released(
    neuron: TestNeuron, gateway: Any, redis_db: Any, caplog: pytest.LogCaptureFixture
) -> None:
    order(neuron, stage_of=replace(OF, index=3))
    assert not gateway.heartbeat().stages and "names none of its stages" in caplog.text
    stage = order(neuron, "listening")
    assert (stage.model, stage.order, stage.address) == ("m", "ordered", "127.0.0.1:7400")
    assert (stage.engine_neuron, stage.index, stage.num_stages) == ("far", 1, 3)
    assert (stage.layers, stage.device) == ((4, 6), "cuda:1")
    assert stage.memory_bytes == reserved(neuron)[1] == 20 * GB, "all that it may take"
    assert reserved(neuron)[0] == 0, "the stages of others are theirs"
    heartbeat = gateway.heartbeat()
    assert heartbeat.stage_host == "10.0.0.5" and not heartbeat.replicas
    assert "secret" not in str(heartbeat)
    assert not read_specs(redis_db, "n1"), "no restart holds it again"
    neuron.load("whole", devices=["cuda:0"])  # it keeps no turn
    order(neuron)  # the same order again changes nothing
    assert held(neuron, "listening").since_unix_s == stage.since_unix_s
    order(neuron, "listening", "j2")
    wait_until(lambda: len(running_engines()) == 2)
    neuron.service.unload_model("whole")
    neuron.service.release_stages("m", "another job")
    neuron.service.release_stages("other", "j2")
    held(neuron, "listening", "j2")
    neuron.service.release_stages("m", "j2")
    wait_nothing(neuron)


@pytest.mark.parametrize("end", ["released", "leaves", "kill", "suspend"])
def test_a_stage_ends_with_its_engine_and_its_process(neuron: TestNeuron, end: str) -> None:
    order(neuron, joins=1, leaves=int(end == "leaves"), takes_gb=7)
    if end != "leaves":
        assert held(neuron, "ready").memory_bytes == 7 * GB
        (process,) = running_engines()
        if end == "released":
            neuron.service.release_stages("m", "j1")
        else:
            getattr(process, end)()
    wait_nothing(neuron)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"load_fails": 1}, "does_not_fit"),
        ({"load_fails": 3}, "engine_crashed"),
        ({"stages": [replace(OWN, memory_bytes=25 * GB)] * 3}, "exceeds_device"),
    ],
)
def test_a_refused_stage_reports_why_and_holds_no_memory(
    neuron: TestNeuron, monkeypatch: pytest.MonkeyPatch, changes: Any, code: str
) -> None:
    assert order(neuron, "failed", **changes).failure.code == code
    assert reserved(neuron)[1] == 0 and not running_engines()
    order(neuron, "listening", "j2")  # the next order takes its place
    order(neuron, "failed", "j3", **changes)
    monkeypatch.setattr(held_stages, "FAILURE_KEPT_S", 0.0)
    wait_nothing(neuron)


def test_what_the_order_names_leaves_first_and_no_engine_with_stages_is_restarted(
    neuron: TestNeuron, gateway: Any, redis_db: Any
) -> None:
    far = replace(OWN, neuron="far", address="10.0.0.9:7400")
    own = StageSpec(device="cuda:1", layers=(0, 4), memory_bytes=5 * GB)
    neuron.load(takes_gb=1, stages=[own, far], link_identity=IDENTITY)
    assert not read_specs(redis_db, "n1")
    neuron.ask(seed=POISON_SEED)
    state = gateway.wait_status("failed")
    assert state.failure.code == "engine_crashed" and state.num_restarts == 0
    wait_until(lambda: not running_engines())
    neuron.service.unload_model("m")
    neuron.wait_gone()
    neuron.load("old", takes_gb=18)
    order(neuron, "listening", "j2", evict=["old", "long-gone"])
    neuron.wait_gone("old")
    wait_until(lambda: len(running_engines()) == 1)
