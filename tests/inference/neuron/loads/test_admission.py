"""Who leaves or sleeps to make room, and for which loads nobody does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inference.neuron.errors import LoadRefusedError
from inference.neuron.loads.admission import Leaving, LoadAdmission, choose_sleepers
from inference.neuron.loads.files import FileChecker
from inference.neuron.loads.load import Load
from inference.neuron.loads.queue import LoadQueue
from inference.protocol.load_progress import LoadFailure, LoadProgress, LoadStage
from inference.protocol.load_report import AsleepBytes
from tests.cases import each_case
from tests.inference.neuron.devices import GB, Machine, card, host
from tests.inference.neuron.loads.test_queue import begun, free_gb, load_of, loaded, stages


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
        self.reported: list[LoadProgress] = []

    def admit(self, gigabytes: float | None, **changes: Any) -> Any:
        evicting = {"model": "new", "devices": ["cuda:1"], "evict": ["old"]} | changes
        load = load_of(gigabytes, **evicting)
        try:
            return self.admission.admit(load, lambda: False, self.reported.append)
        finally:
            self.queue.release(load)

    def refusal(self, gigabytes: float | None, **changes: Any) -> LoadFailure:
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
    assert {progress.stage for progress in house.reported} == {LoadStage.QUEUED}
    assert house.queue.enter(load_of(1), lambda: False, lambda _: None), "the next has its turn"


def leaving(model: str, held: int, device: int | None, host: int = 0) -> Leaving:
    asleep = None if device is None else AsleepBytes(device_bytes=device, host_bytes=host)
    return Leaving(model=model, held_bytes=held, asleep=asleep)


CASES = {
    "on a card nearly all comes back": ([leaving("a", 80, 1, 70)], 75, 100, {"a"}),
    "the host has no room": ([leaving("a", 80, 1, 70)], 75, 69, set()),
    "what stays behind is wanted": ([leaving("a", 80, 1, 70)], 80, 100, set()),
    "on a processor the weights stay": ([leaving("a", 80, 60)], 20, 0, {"a"}),
    "and more than the rest is wanted": ([leaving("a", 80, 60)], 21, 0, set()),
    "it cannot sleep": ([leaving("a", 80, None)], 1, 100, set()),
    "nobody knows what is wanted": ([leaving("a", 80, 1, 70)], None, 100, set()),
    "one of two": ([leaving("a", 40, 30), leaving("b", 40, 5)], 60, 0, {"b"}),
    "the host has room for one": ([leaving("a", 40, 1, 9), leaving("b", 40, 1, 9)], 60, 10, {"a"}),
}


@each_case(("who", "lacking", "host", "expected"), CASES.values(), ids=CASES.keys())
def test_who_sleeps(who: list[Leaving], lacking: int | None, host: int, expected: set[str]) -> None:
    assert choose_sleepers(who, lacking_bytes=lacking, host_bytes=host) == expected
