"""A neuron's loads take turns, keep to devices, make room for each other and never overcommit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inference.loading.config.hub_config import read_directory_config
from inference.neuron.replicas.by_model import SpecStore
from inference.neuron.service import NeuronService
from inference.protocol.heartbeat import DeviceInfo, HostInfo
from inference.protocol.load import EarlierLoads, LoadSpec, StageSpec
from inference.protocol.load_errors import UnknownArchitectureError
from inference.protocol.load_progress import LoadStage
from inference.settings.neuron import MemoryLimits
from tests.inference.neuron.devices import GB, card, host
from tests.inference.neuron.fake_engines import running_engines

pytestmark = pytest.mark.slow

MakeService = Callable[..., NeuronService]
MakeSpec = Callable[..., LoadSpec]


class Host:
    """Two cards; engines own the memory that they report."""

    def __init__(self, *devices: DeviceInfo) -> None:
        self.there = list(devices)

    def devices(self) -> list[DeviceInfo]:
        return self.there

    def measure(self) -> list[DeviceInfo]:
        return self.there

    def held_bytes(self, pid: int) -> int:
        return 0

    def host(self) -> HostInfo:
        return HostInfo(
            hostname="h", os="Linux", num_cores=1, total_memory_bytes=1, free_memory_bytes=1
        )


@pytest.fixture
def cards() -> Host:
    return Host(card(0, 6), card(1, 20), host(100))


@pytest.fixture
def service(make_service: MakeService, cards: Host) -> NeuronService:
    return make_service(discovery=cards)


def needing(spec: LoadSpec, gigabytes: float, **changes: Any) -> LoadSpec:
    earlier = EarlierLoads(device_kind="cuda", needed_bytes=int(gigabytes * GB))
    return msgspec.structs.replace(spec, earlier_loads=earlier, **changes)


def test_a_load_goes_to_the_freest_card_and_reports_it(
    service: NeuronService, fake_spec: MakeSpec, gateway: Any
) -> None:
    service.load_model(fake_spec())
    state = gateway.wait_status("ready")
    assert state.devices == ["cuda:1"]
    assert state.report.device == "cuda:1"


def test_kv_memory_beyond_the_device_is_refused_before_an_engine_starts(
    service: NeuronService, fake_spec: MakeSpec, gateway: Any
) -> None:
    service.load_model(msgspec.structs.replace(fake_spec(), kv_memory_bytes=900 * GB))
    failure = gateway.wait_status("failed").failure
    assert (failure.code, failure.is_permanent) == ("exceeds_device", True)
    assert "900.00 GB" in failure.message and "24.00 GB in all" in failure.message
    assert not running_engines()


def test_a_neuron_uses_no_more_of_a_device_than_its_operator_lets_it(
    make_service: MakeService, cards: Host, fake_spec: MakeSpec, gateway: Any
) -> None:
    limits = MemoryLimits((("cuda:1", 10 * GB), ("cuda:7", GB)))
    service = make_service(discovery=cards, memory_limits=limits)
    _, limited, _ = service.heartbeat().devices
    assert (limited.free_memory_bytes, limited.total_memory_bytes) == (10 * GB, 10 * GB)
    assert limited.installed_memory_bytes == 24 * GB
    assert [text for text in service.heartbeat().host.problems if "cuda:7" in text]
    large = msgspec.structs.replace(fake_spec(), devices=["cuda:1"], kv_memory_bytes=11 * GB)
    service.load_model(large)
    failure = gateway.wait_status("failed").failure
    assert (failure.code, failure.is_permanent) == ("exceeds_device", True)
    assert "10.00 GB in all by HELEXA_MEMORY_LIMIT" in failure.message
    service.load_model(msgspec.structs.replace(needing(fake_spec(), 9), job_id="j2"))
    assert gateway.wait_status("ready").devices == ["cuda:1"]


def test_two_cold_loads_take_turns_and_the_second_reports_what_it_waits_for(
    service: NeuronService, fake_spec: MakeSpec, gateway: Any, wait_until: Any
) -> None:
    service.load_model(fake_spec("a", load_s=30))
    wait_until(running_engines)
    service.load_model(fake_spec("b"))
    wait_until(
        lambda: (
            (state := gateway.replica("b")) is not None
            and state.progress is not None
            and state.progress.stage is LoadStage.QUEUED
        )
    )
    state = gateway.replica("b")
    assert state.status == "loading"
    assert state.progress.detail == "a is loaded first"
    assert len(running_engines()) == 1
    service.unload_model("a")  # a load that is cancelled gives its turn on
    gateway.wait_status("ready", "b")


def test_a_load_that_waits_is_cancelled_at_once(
    service: NeuronService, fake_spec: MakeSpec, gateway: Any, wait_until: Any
) -> None:
    service.load_model(fake_spec("a", load_s=30))
    wait_until(running_engines)
    service.load_model(fake_spec("b"))
    gateway.wait_status("loading", "b")
    service.unload_model("b")
    wait_until(lambda: gateway.replica("b") is None)
    assert gateway.replica("a").status == "loading"
    assert len(running_engines()) == 1


def test_accepted_loads_are_not_free_for_others(
    service: NeuronService, fake_spec: MakeSpec, gateway: Any, wait_until: Any
) -> None:
    service.load_model(fake_spec("a", load_s=30))
    wait_until(running_engines)
    service.load_model(needing(fake_spec("b"), 15))
    wait_until(lambda: gateway.heartbeat().devices[1].reserved_bytes == 15 * GB)
    assert gateway.heartbeat().devices[1].free_memory_bytes == 5 * GB
    assert gateway.heartbeat().devices[0].free_memory_bytes == 6 * GB
    assert gateway.replica("b").memory_bytes == 15 * GB
    # The free memory decides where the next one goes.
    service.load_model(fake_spec("c"))
    wait_until(lambda: (state := gateway.replica("c")) is not None and state.devices)
    assert gateway.replica("c").devices == ["cuda:0"]


def test_a_load_that_does_not_fit_beside_the_promised_is_refused_with_numbers(
    service: NeuronService, fake_spec: MakeSpec, gateway: Any
) -> None:
    service.load_model(needing(fake_spec("big"), 23))
    failure = gateway.wait_status("failed", "big").failure
    assert (failure.code, failure.is_permanent) == ("does_not_fit", False)
    assert "needs 23.00 GB on cuda:1, and 20.00 GB are free" in failure.message


def test_a_model_that_does_not_fit_is_weighed_unless_it_is_divided(
    service: NeuronService, fake_spec: MakeSpec, gateway: Any, three_layers: Path
) -> None:
    spec = msgspec.structs.replace(
        needing(fake_spec("big"), 23), source=f"path:{three_layers}", file=None
    )
    service.load_model(spec)
    costs = gateway.wait_status("failed", "big").failure.costs
    assert costs is not None and len(costs.layers) == 3
    stages = [
        StageSpec(device="cuda:0", layers=(0, 1), memory_bytes=GB),
        StageSpec(device="cuda:1", layers=(1, 3), memory_bytes=23 * GB),
    ]
    service.load_model(msgspec.structs.replace(spec, model="parts", stages=stages))
    failure = gateway.wait_status("failed", "parts").failure
    assert (failure.code, failure.costs) == ("does_not_fit", None)
    assert "needs 23.00 GB on cuda:1" in failure.message
    assert all(device.reserved_bytes == 0 for device in gateway.heartbeat().devices)


def test_evicted_models_leave_first(
    service: NeuronService, cards: Host, fake_spec: MakeSpec, gateway: Any, wait_until: Any
) -> None:
    service.load_model(fake_spec("old", takes_gb=18))
    gateway.wait_status("ready", "old")
    cards.there[1] = card(1, 2)  # the driver's word
    asked = needing(fake_spec("new"), 15, devices=["cuda:1"], evict=["old", "long-gone"])
    service.load_model(asked)
    wait_until(lambda: gateway.replica("old") is None)
    cards.there[1] = card(1, 20)
    gateway.wait_status("ready", "new")
    assert len(running_engines()) == 1
    (stored,) = SpecStore(gateway.client, neuron="n1").read()
    assert (stored.model, stored.evict) == ("new", [])  # the next instance evicts nothing


def test_nobody_leaves_for_files_that_could_not_fit_then(
    service: NeuronService, cards: Host, fake_spec: MakeSpec, gateway: Any, tmp_path: Path
) -> None:
    """No load has measured the model's memory: the size of its file suffices."""
    service.load_model(fake_spec("old", takes_gb=18))
    gateway.wait_status("ready", "old")
    cards.there[1] = card(1, 2)
    file = tmp_path / "huge.gguf"
    with file.open("wb") as sparse:
        sparse.truncate(50 * GB)
    asked = msgspec.structs.replace(
        fake_spec("new"), source=f"path:{file}", file=None, devices=["cuda:1"], evict=["old"]
    )
    service.load_model(asked)
    failure = gateway.wait_status("failed", "new").failure
    assert (failure.code, failure.needed_bytes) == ("does_not_fit", 25 * GB)
    assert gateway.replica("old").status == "ready"


def test_nobody_leaves_for_a_path_that_is_not_there(
    service: NeuronService, cards: Host, fake_spec: MakeSpec, gateway: Any, tmp_path: Path
) -> None:
    service.load_model(fake_spec("old", takes_gb=18))
    gateway.wait_status("ready", "old")
    asked = needing(fake_spec("new"), 15, devices=["cuda:1"], evict=["old"])
    service.load_model(msgspec.structs.replace(asked, source=f"path:{tmp_path / 'gone'}"))
    failure = gateway.wait_status("failed", "new").failure
    assert (failure.code, failure.is_permanent) == ("missing_file", True)
    assert f"{tmp_path / 'gone'} does not exist" in failure.message
    assert gateway.replica("old").status == "ready"


def test_nobody_leaves_for_files_that_the_engine_would_refuse(
    service: NeuronService, cards: Host, fake_spec: MakeSpec, gateway: Any, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "lama"}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    service.load_model(fake_spec("old", takes_gb=18))
    gateway.wait_status("ready", "old")
    asked = needing(fake_spec("new"), 15, devices=["cuda:1"], evict=["old"])
    service.load_model(msgspec.structs.replace(asked, source=f"path:{tmp_path}", file=None))
    with pytest.raises(UnknownArchitectureError) as refused:
        read_directory_config(tmp_path)
    assert gateway.wait_status("failed", "new").failure == refused.value.failure
    assert gateway.replica("old").status == "ready"


def test_failed_loads_in_a_row_are_counted_until_another_spec_comes(
    service: NeuronService, fake_spec: MakeSpec, gateway: Any, wait_until: Any
) -> None:
    def failed(job_id: str, number: int) -> None:
        wait_until(
            lambda: (
                (state := gateway.replica()) is not None
                and (state.job_id, state.status) == (job_id, "failed")
            )
        )
        assert gateway.replica().num_failed_loads == number

    for number in (1, 2, 3):
        service.load_model(fake_spec(job_id=f"j{number}", load_fails=1))
        failed(f"j{number}", number)
    service.load_model(fake_spec(job_id="other", load_fails=1, rate=300))
    failed("other", 1)


def test_a_model_that_got_busy_is_not_unloaded_and_the_load_reports_it(
    service: NeuronService, fake_spec: MakeSpec, gateway: Any, wait_until: Any
) -> None:
    service.load_model(fake_spec("old", context=1_000_000))
    gateway.wait_status("ready", "old")
    request_id = gateway.submit(model="old", max_tokens=100_000)
    service.drain_inbox()
    gateway.wait_events(request_id, lambda events: len(events) > 2)
    service.load_model(msgspec.structs.replace(fake_spec("new"), evict=["old"]))
    failure = gateway.wait_status("failed", "new").failure
    assert (failure.code, failure.is_permanent) == ("lost_its_room", False)
    assert "old" in failure.message
    assert gateway.replica("old").status == "ready"
    gateway.cancel(request_id)
    service.drain_inbox()
    gateway.wait_end(request_id)


def test_nothing_is_unloaded_for_a_load_that_would_not_fit_even_then(
    service: NeuronService, cards: Host, fake_spec: MakeSpec, gateway: Any
) -> None:
    service.load_model(fake_spec("old", takes_gb=5))
    gateway.wait_status("ready", "old")
    cards.there[1] = card(1, 3)
    service.load_model(needing(fake_spec("new"), 15, devices=["cuda:1"], evict=["old"]))
    failure = gateway.wait_status("failed", "new").failure
    assert failure.code == "does_not_fit"
    assert "8.00 GB are free there once old is unloaded" in failure.message
    assert gateway.replica("old").status == "ready"


def test_an_engine_that_died_comes_back_within_what_it_had(
    service: NeuronService, fake_spec: MakeSpec, gateway: Any, wait_until: Any
) -> None:
    service.load_model(fake_spec(takes_gb=7, crash_after=3))
    gateway.wait_status("ready")
    request_id = gateway.submit(max_tokens=50)
    service.drain_inbox()
    gateway.wait_end(request_id)
    wait_until(lambda: gateway.replica().num_restarts == 1 and gateway.replica().status == "ready")
    state = gateway.replica()
    assert state.devices == ["cuda:1"]
    assert state.report.context_reason.endswith(f"{7 * GB} are mine")


def test_the_neuron_logs_why_a_load_was_refused(
    service: NeuronService, fake_spec: MakeSpec, gateway: Any, caplog: pytest.LogCaptureFixture
) -> None:
    service.load_model(fake_spec(load_fails=1))
    gateway.wait_status("failed")
    logged = "\n".join(record.getMessage() for record in caplog.records)
    assert "not loaded (does_not_fit): needs 9 GB, 1 GB is free" in logged
    assert "orphaned" not in logged


def test_a_restart_loads_what_was_used_last_first(
    make_service: MakeService, fake_spec: MakeSpec, gateway: Any
) -> None:
    """Where not all of it has room any more."""
    saved = [
        needing(fake_spec(name), 15, devices=["cuda:0"], last_used_unix_s=last_used)
        for name, last_used in (("a", None), ("b", 20.0), ("c", 30.0), ("d", 10.0))
    ]
    SpecStore(gateway.client, neuron="n1").write(saved)
    make_service(discovery=Host(card(0, 20), host(100)))
    assert gateway.wait_status("ready", "c").last_used_unix_s == 30.0
    assert {gateway.replica(name).status for name in ("a", "b", "d")} == {"recovering"}
    used = {
        spec.model: spec.last_used_unix_s for spec in SpecStore(gateway.client, neuron="n1").read()
    }
    assert used == {"a": None, "b": 20.0, "c": 30.0, "d": 10.0}, "for the instance after this one"
