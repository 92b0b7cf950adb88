"""The queue's own arithmetic over measurements (the memory that a running load holds already, its
grant, the rest for the next), and who leaves or sleeps to make room."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from inference.neuron.errors import LoadRefusedError
from inference.neuron.loads.admission import Leaving, LoadAdmission, choose_sleepers
from inference.neuron.loads.files import FileChecker
from inference.neuron.loads.load import Load, check_possible, check_room, waking_bytes
from inference.neuron.loads.queue import HOST_SHARE_KEPT, LoadQueue
from inference.protocol import load_report as reported
from inference.protocol.load import EarlierLoads, LoadSpec, StageSpec
from inference.settings.neuron import MemoryLimits
from tests.cases import each_case
from tests.inference.neuron.devices import GB, Machine, card, host
from tests.inference.reports import load_report

SPEC = LoadSpec(job_id="j", model="m", source="fake:m")
REPORT = load_report(device="cuda:0", weight_bytes=1, kv_bytes=1)


def load_of(gigabytes: float | None = None, **changes: object) -> Load:
    kind = "cpu" if changes.get("devices") == ["cpu"] else "cuda"
    known = gigabytes is not None
    earlier = EarlierLoads(device_kind=kind, needed_bytes=int(gigabytes * GB)) if known else None
    return Load(msgspec.structs.replace(SPEC, earlier_loads=earlier, **changes))


def begun(queue: LoadQueue, load: Load) -> LoadSpec:
    queue.accept(load)
    assert queue.enter(load, lambda: False, lambda first: None)
    spec = queue.begin(load, queue.room(load))
    queue.started(load, 1)
    return spec


def loaded(queue: LoadQueue, load: Load, took_gb: float) -> None:
    report = msgspec.structs.replace(REPORT, actual_bytes=int(took_gb * GB))
    queue.loaded(load, report)


def free_gb(queue: LoadQueue) -> list[float]:
    return [device.free_memory_bytes / GB for device in queue.devices()]


def test_a_card_counts_what_has_gone_since_the_load_began() -> None:
    machine = Machine(card(0, 20))
    queue = LoadQueue(machine)
    load = load_of(12, evict=["other"])
    spec = begun(queue, load)
    assert spec.devices == ["cuda:0"]
    assert spec.evict == load.spec.evict == [], "it evicts nobody when it starts again"
    assert (spec.memory_limit_bytes, spec.promised_bytes) == (20 * GB, 0)
    assert free_gb(queue) == [8]
    machine.there = [card(0, 13)]  # it has taken 7
    assert free_gb(queue) == [8]
    machine.there = [card(0, 6)]  # and more than estimated
    assert free_gb(queue) == [6]
    loaded(queue, load, 14)
    assert free_gb(queue) == [6]
    queue.engine_ended(load)
    machine.there = [card(0, 20)]  # the driver has it back
    assert free_gb(queue) == [6]
    spec = queue.begin_again(load)
    assert (spec.devices, spec.memory_limit_bytes, spec.promised_bytes) == (["cuda:0"], 14 * GB, 0)
    queue.release(load)
    assert free_gb(queue) == [20]
    assert queue.kept_bytes(load) is None


def test_loads_that_wait_and_ranks_share_the_cards() -> None:
    queue = LoadQueue(Machine(card(0, 20)))
    queue.accept(later := load_of(8))
    queue.accept(first := load_of(5))
    # Accepted before it, so its promise stands; the other way round as well, as far as 5 are left.
    assert queue.room(first).limit_bytes == 12 * GB
    assert queue.room(later).limit_bytes == 15 * GB
    queue.release(later)
    queue.release(first)
    unknown = load_of(None, kv_memory_bytes=2 * GB)
    queue.accept(unknown)
    assert free_gb(queue) == [18]
    queue.expect(unknown, 5 * GB)  # its files are there
    assert 12 < free_gb(queue)[0] < 13
    queue = LoadQueue(Machine(card(0, 20), card(1, 20)))
    load = load_of(12, tensor_parallel=2)
    assert begun(queue, load).devices == ["cuda:0", "cuda:1"]
    assert free_gb(queue) == [14, 14]
    loaded(queue, load, 16)
    claims = {name: claim.num_bytes for name, claim in load.claims.items()}
    assert claims == {"cuda:0": 8 * GB, "cuda:1": 8 * GB}


def test_a_load_may_take_what_the_operator_lets_models_use() -> None:
    machine = Machine(card(0, 20), host(100))
    queue = LoadQueue(machine, MemoryLimits((("cuda:0", 10 * GB), ("cpu", 40 * GB))))
    assert free_gb(queue) == [10, 40]
    spec = begun(queue, load_of(7))
    # An engine measures 20 GB, of which 10 are none of its own.
    assert (spec.memory_limit_bytes, spec.promised_bytes) == (10 * GB, 10 * GB)
    assert free_gb(queue) == [3, 40]
    machine.there = [card(0, 12), host(100)]
    assert free_gb(queue) == [2, 40]
    assert queue.host_bytes() == int((1 - HOST_SHARE_KEPT) * 40 * GB)
    assert queue.free_bytes() == {"cuda:0": 2 * GB, "cpu": 40 * GB}
    assert queue.limit_problems() == []
    too_much = msgspec.structs.replace(SPEC, devices=["cuda:0"], kv_memory_bytes=11 * GB)
    with pytest.raises(LoadRefusedError, match=r"10.00 GB in all by HELEXA_MEMORY_LIMIT"):
        check_possible(too_much, queue.devices())
    queue = LoadQueue(Machine(host(100)), MemoryLimits((("cuda:1", GB),)))
    assert queue.limit_problems() == [
        "HELEXA_MEMORY_LIMIT names cuda:1, which is not here; this neuron has cpu"
    ]


def stages(card_gb: float, host_gb: float) -> list[StageSpec]:
    """Two on the card, around one on the host."""
    card_bytes, host_bytes = int(card_gb * GB), int(host_gb * GB)
    return [
        StageSpec(device="cuda", layers=(0, 2), memory_bytes=card_bytes - 1),
        StageSpec(device="cpu", layers=(2, 3), memory_bytes=host_bytes),
        StageSpec(device="cuda:0", layers=(3, 4), memory_bytes=1),
    ]


def staged_report(card_gb: float, host_gb: float) -> reported.LoadReport:
    memory = [
        reported.DeviceMemory(device=name, actual_bytes=int(gigabytes * GB), process_bytes=0)
        for name, gigabytes in (("cuda:0", card_gb), ("cpu", host_gb))
    ]
    return msgspec.structs.replace(REPORT, actual_bytes=1, stage_memory=memory)


def test_stages_keep_what_their_plan_allots_or_they_hold_on_each_device() -> None:
    machine = Machine(host(32), card(0, 20))
    queue = LoadQueue(machine)
    load = load_of(stages=stages(12, 5))
    queue.accept(load)
    assert load.devices == ("cuda:0", "cpu")
    assert free_gb(queue) == [27, 8]
    assert queue.enter(load, lambda: False, lambda first: None)
    spec = queue.begin(load, queue.room(load))
    assert [stage.device for stage in spec.stages] == ["cuda:0", "cpu", "cuda:0"]
    assert [stage.memory_limit_bytes for stage in spec.stages] == [20 * GB, 32 * GB, 20 * GB]
    queue.started(load, 1)
    assert queue.kept_bytes(load) == 17 * GB
    queue.loaded(load, staged_report(card_gb=11, host_gb=3))
    assert free_gb(queue) == [29, 20], "the card holds all of it, and the host nothing yet"
    assert load.used == {"cuda:0": 11 * GB, "cpu": 3 * GB}
    assert queue.kept_bytes(load) == 14 * GB
    machine.there, machine.held = [host(29), card(0, 9)], 3 * GB
    held = reported.AsleepBytes(
        device_bytes=3 * GB, host_bytes=1 * GB, by_device={"cuda:0": GB, "cpu": 2 * GB}
    )
    for name, free in (("cuda:0", 19), ("cpu", 30)):  # another load counts on the rest
        room = queue.room(load_of(devices=[name]), asleep=[(load, held)])
        assert room.limits == {name: free * GB}
    assert queue.keep_host_room(load, held.host_bytes)
    machine.there, machine.held = [host(26), card(0, 19)], 2 * GB
    queue.fell_asleep(load, held)
    assert queue.kept_bytes(load) == 3 * GB
    assert free_gb(queue) == [26, 19]
    room = queue.room(load)
    assert room.limits == {"cuda:0": 19 * GB, "cpu": 26 * GB}
    assert [waking_bytes(load.used[name], held, name) for name in room.limits] == [10 * GB, GB]
    queue.begin_waking(load)
    assert queue.kept_bytes(load) == 14 * GB
    queue.awake(load)
    machine.there, machine.held = [host(32), card(0, 20)], 0
    queue.engine_ended(load)
    assert free_gb(queue) == [29, 9]
    spec = queue.begin_again(load)
    assert [stage.memory_limit_bytes for stage in spec.stages] == [11 * GB, 3 * GB, 11 * GB]
    queue.release(load)
    assert free_gb(queue) == [32, 20]
    begun(queue, load_of(7, devices=["cpu"]))
    queue.accept(later := load_of(stages=stages(12, 5)))
    room = queue.room(later)
    assert room.limits == {"cuda:0": 20 * GB, "cpu": 25 * GB}
    assert room.promised == {"cuda:0": 0, "cpu": 7 * GB}
    queue = LoadQueue(Machine(card(0, 20)))
    with pytest.raises(LoadRefusedError, match="'cpu' is not here; this neuron has cuda:0"):
        queue.accept(later)
    assert free_gb(queue) == [20]
    check_room(later.spec, "cpu", 5 * GB)
    with pytest.raises(LoadRefusedError, match=r"needs 12.00 GB on cuda:0, and 11.00 GB are free"):
        check_room(later.spec, "cuda:0", 11 * GB)
    with pytest.raises(LoadRefusedError, match=r"needs 12.00 GB, by its plan, and cuda:0 has 8.00"):
        check_possible(later.spec, [host(32), card(0, 8, total_gb=8)])


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
    queue.fell_asleep(first, reported.AsleepBytes(device_bytes=GB, host_bytes=40 * GB))
    assert queue.host_bytes() == 10 * GB
    assert queue.kept_bytes(first) == GB
    queue.begin_waking(first)
    assert queue.kept_bytes(first) == 12 * GB
    machine.there[1] = host(60, total_gb=100)
    queue.awake(first)
    assert queue.host_bytes() == 50 * GB


class Loaded:
    """A replica that is ready on a card."""

    def __init__(self, load: Load) -> None:
        self.spec, self.load, self.may_sleep_as = load.spec, load, None
        self.is_busy = self.has_left = False
        self.now_s, self.leaves_after = 0.0, 0
        """Looks: until then the kernel does not end its process."""

    def is_idle(self) -> bool:
        return not self.is_busy

    def leave_if_idle(self, *, may_sleep: bool) -> bool:
        self.has_left = True
        return True

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds

    def wait_left(self, timeout_s: float | None = None) -> bool:
        self.pass_time(timeout_s or 0.0)
        self.leaves_after -= 1
        return self.leaves_after < 0


class House:
    """A card of which "old" has 18 of 20 GB, and another one of which 6 GB are free."""

    def __init__(self, checker: FileChecker | None = None) -> None:
        self.machine = Machine(card(0, 6), card(1, 20), host(100))
        self.queue = LoadQueue(self.machine)
        self.old = Loaded(load_of(18, model="old"))
        begun(self.queue, self.old.load)
        loaded(self.queue, self.old.load, took_gb=18)
        self.machine.there[1] = card(1, 2)
        old: Any = self.old
        self.admission = LoadAdmission(
            self.queue,
            fetch=lambda *_: None,
            check_files=(checker or FileChecker(is_enabled=False)).check,
            find=lambda model: old if model == "old" else None,
            clock=lambda: old.now_s,
            sleep=old.pass_time,
        )
        self.reported: list[reported.LoadProgress] = []

    def admit(self, gigabytes: float | None, **changes: Any) -> Any:
        evicting = {"model": "new", "devices": ["cuda:1"], "evict": ["old"]} | changes
        load = load_of(gigabytes, **evicting)
        try:
            return self.admission.admit(load, lambda: False, self.reported.append)
        finally:
            self.queue.release(load)

    def refusal(self, gigabytes: float | None, **changes: Any) -> reported.LoadFailure:
        with pytest.raises(LoadRefusedError) as refused:
            self.admit(gigabytes, **changes)
        return refused.value.failure


def test_nobody_leaves_for_a_load_that_would_fail(tmp_path: Path) -> None:
    gone, file = tmp_path / "gone", tmp_path / "huge.gguf"
    with file.open("wb") as sparse:
        sparse.truncate(50 * GB)
    house = House()
    for gigabytes, changes, code, words in [
        (15, {"source": f"path:{gone}"}, "missing_file", f"{gone} does not exist"),
        (21, {}, "does_not_fit", "20.00 GB are free there once old is unloaded"),
        # No load has measured the model's memory: the size of its file suffices.
        (None, {"source": f"path:{file}"}, "does_not_fit", "25.00 GB"),
        (None, {"kv_memory_bytes": 900 * GB}, "exceeds_device", "900.00 GB"),
        (23, {"evict": []}, "does_not_fit", "needs 23.00 GB on cuda:1, and 2.00 GB are free"),
        (23, {"evict": [], "stages": stages(5, 200)}, "exceeds_device", "200.00 GB"),
    ]:
        failure = house.refusal(gigabytes, **changes)
        assert failure.code == code and words in failure.message
        assert failure.is_permanent == (code != "does_not_fit")
    house.old.is_busy = True
    failure = house.refusal(15)
    assert (failure.code, failure.is_permanent) == ("lost_its_room", False)
    assert "old" in failure.message
    assert not house.old.has_left
    assert free_gb(house.queue) == [6, 2, 100], "and they keep no memory"

    (tmp_path / "config.json").write_text('{"model_type": "lama"}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    house = House(FileChecker())
    failure = house.refusal(15, source=f"path:{tmp_path}")  # which the engine would refuse
    assert failure.code == "unknown_architecture" and not house.old.has_left


def test_the_evicted_leave_and_their_memory_is_waited_for_but_not_for_ever() -> None:
    house = House()
    failure = house.refusal(15, evict=["old", "long-gone"])
    assert house.old.has_left and house.old.now_s > 5
    assert failure.code == "does_not_fit", "the driver does not release it"
    house.machine.there[1] = card(1, 20)
    house.queue.release(house.old.load)
    assert house.admit(15).devices == ["cuda:1"]
    house = House()
    house.old.leaves_after = 10_000
    failure = house.refusal(15)
    assert failure.code == "load_stalled"
    assert failure.message == "old was to make room and has not left after 300 s"
    assert {progress.stage for progress in house.reported} == {reported.LoadStage.QUEUED}
    assert house.queue.enter(load_of(1), lambda: False, lambda _: None), "the next has its turn"


def leaving(model: str, held: int, device: int | None, host: int = 0) -> Leaving:
    asleep = None if device is None else reported.AsleepBytes(device_bytes=device, host_bytes=host)
    return Leaving(model=model, held_bytes=held, asleep=asleep)


@each_case(
    ("who", "lacking", "host", "expected"),
    [
        ([leaving("a", 80, 1, 70)], 75, 100, {"a"}),  # on a card nearly all comes back
        ([leaving("a", 80, 1, 70)], 75, 69, set()),  # the host has no room
        ([leaving("a", 80, 1, 70)], 80, 100, set()),  # what stays behind is wanted
        ([leaving("a", 80, 60)], 20, 0, {"a"}),  # on a processor the weights stay
        ([leaving("a", 80, 60)], 21, 0, set()),  # and more than the rest is wanted
        ([leaving("a", 80, None)], 1, 100, set()),  # it cannot sleep
        ([leaving("a", 80, 1, 70)], None, 100, set()),  # nobody knows what is wanted
        ([leaving("a", 40, 30), leaving("b", 40, 5)], 60, 0, {"b"}),
        ([leaving("a", 40, 1, 9), leaving("b", 40, 1, 9)], 60, 10, {"a"}),  # room for one
    ],
)
def test_who_sleeps(who: list[Leaving], lacking: int | None, host: int, expected: set[str]) -> None:
    assert choose_sleepers(who, lacking_bytes=lacking, host_bytes=host) == expected
