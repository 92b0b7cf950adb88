"""Per failure code: what may make the next load of the same spec succeed."""

from __future__ import annotations

from inference.neuron.replicas.retries import (
    MAX_CHANCES,
    MORE_MEMORY_BYTES,
    Conditions,
    has_improved,
    waits_for_time,
)
from inference.protocol.load_progress import PERMANENT_FAILURES, LoadFailure
from tests.cases import each_case

GIB = 1024**3
LITTLE = Conditions(device_free_bytes={"cuda:0": GIB, "cuda:1": GIB}, disk_free_bytes=GIB)
MUCH = Conditions(device_free_bytes={"cuda:0": 9 * GIB, "cuda:1": 9 * GIB}, disk_free_bytes=9 * GIB)


def failure(code: str, needed_bytes: int | None = None) -> LoadFailure:
    return LoadFailure(code=code, message="", needed_bytes=needed_bytes)


@each_case(
    "code", ["download_failed", "load_stalled", "stage_unreachable", "lost_its_room", "no_device"]
)
def test_what_this_host_cannot_see_waits_for_time(code: str) -> None:
    assert waits_for_time(failure(code), 99)


@each_case("code", ["engine_crashed", "engine_hung", "engine_error", "device_fault"])
def test_chance_explains_a_few_failures(code: str) -> None:
    assert waits_for_time(failure(code), MAX_CHANCES)
    assert not waits_for_time(failure(code), MAX_CHANCES + 1)
    assert has_improved(failure(code), ["cuda:0"], LITTLE, MUCH)


@each_case("code", ["does_not_fit", "out_of_memory", "disk_full"])
def test_what_lacks_room_waits_for_room(code: str) -> None:
    assert not waits_for_time(failure(code), 1)
    assert has_improved(failure(code), ["cuda:0"], LITTLE, MUCH)
    assert not has_improved(failure(code), ["cuda:0"], LITTLE, LITTLE)
    assert not has_improved(failure(code), ["cuda:0"], MUCH, LITTLE)


def test_a_load_that_reported_what_it_needs_is_placed_by_that() -> None:
    assert waits_for_time(failure("does_not_fit", 5 * GIB), 99)


@each_case("code", sorted(PERMANENT_FAILURES))
def test_nothing_that_is_freed_mends_files_and_settings(code: str) -> None:
    assert not waits_for_time(failure(code), 1)
    assert not has_improved(failure(code), ["cuda:0"], LITTLE, MUCH)


def test_as_many_devices_need_more_as_it_was_loaded_onto() -> None:
    one = Conditions(device_free_bytes={"cuda:0": 9 * GIB, "cuda:1": GIB})
    ranks = ["cuda:0", "cuda:1"]
    assert not has_improved(failure("out_of_memory"), ranks, LITTLE, one)
    assert has_improved(failure("out_of_memory"), ranks, LITTLE, MUCH)


def test_what_other_programs_take_and_free_is_no_change() -> None:
    noise = {"cuda:0": GIB + MORE_MEMORY_BYTES - 1, "cuda:1": GIB}
    now = Conditions(device_free_bytes=noise, disk_free_bytes=GIB + 1)
    for code in ("out_of_memory", "disk_full"):
        assert not has_improved(failure(code), ["cuda:0"], LITTLE, now)
