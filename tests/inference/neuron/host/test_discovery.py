"""A host's report with a GPU, with a broken driver, and without either."""

from __future__ import annotations

import mmap
import os
import platform
import subprocess
import sys
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pynvml

from inference.neuron.host.discovery import Discovery, held_bytes
from tests.cases import each_case
from tests.inference.neuron.host.fake_nvml import GIB, FakeNvml, discovered


def test_cuda_devices() -> None:
    first, second, processors = discovered(FakeNvml()).devices()
    assert processors.kind == "cpu"
    assert (first.kind, first.name, first.index) == ("cuda", "Card 0", 0)
    assert (first.compute_capability, first.driver) == ("8.6", "580.10")
    assert (second.total_memory_bytes, second.free_memory_bytes) == (24 * GIB, 21 * GIB)
    assert (first.utilization_percent, first.temperature_c) == (80, 61)
    assert first.power_w == 220.5
    assert (second.utilization_percent, second.temperature_c, second.power_w) == (None, None, None)


def test_the_kernel_is_not_the_system() -> None:
    host = discovered(FakeNvml()).host()
    assert host.cuda_version == "13.0" and host.torch_version == metadata.version("torch")
    assert host.kernel == f"{platform.system()} {platform.release()}" != host.os


@each_case(
    ("visible", "names"),
    [
        ("1", ["Card 1"]),
        ("1,0", ["Card 1", "Card 0"]),
        ("GPU-1", ["Card 1"]),
        ("0,7,1", ["Card 0"]),
    ],
)
def test_engines_see_what_cuda_visible_devices_leaves(visible: str, names: list[str]) -> None:
    devices = discovered(FakeNvml(), CUDA_VISIBLE_DEVICES=visible).cuda_devices()
    assert [device.name for device in devices] == names
    assert [device.index for device in devices] == list(range(len(names)))


class DividedNvml(FakeNvml):
    """The second card is divided into parts 0 and 2."""

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: int) -> int:  # noqa: N802
        return 7 if handle == 1 else 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, index: int) -> int:  # noqa: N802
        if index not in (0, 2):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return 100 + index

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return f"MIG-part{handle - 100}" if handle >= 100 else f"GPU-{handle}abc"

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return f"Card 1 MIG part {handle - 100}" if handle >= 100 else f"Card {handle}"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        if handle >= 100:
            return SimpleNamespace(total=6 * GIB, free=5 * GIB)
        return super().nvmlDeviceGetMemoryInfo(handle)


@each_case(
    ("visible", "names"),
    [
        ("MIG-part2", ["Card 1 MIG part 2"]),
        ("MIG-part0,0,MIG-part2", ["Card 1 MIG part 0", "Card 0", "Card 1 MIG part 2"]),
        ("MIG-part1,0", []),
        ("1", ["Card 1 MIG part 0"]),
        (None, ["Card 0", "Card 1 MIG part 0"]),
    ],
)
def test_parts_of_a_card_are_devices(visible: str | None, names: list[str]) -> None:
    """A divided card is never offered whole: a process gets one part of it."""
    listed = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    devices = discovered(DividedNvml(), **listed).cuda_devices()
    assert [device.name for device in devices] == names
    for device in devices:
        if "MIG" in device.name:
            assert (device.total_memory_bytes, device.free_memory_bytes) == (6 * GIB, 5 * GIB)
            assert device.compute_capability == "8.6"


def test_a_card_without_memory_of_its_own_has_the_hosts() -> None:
    discovery = discovered(FakeNvml(memory_error=pynvml.NVML_ERROR_NOT_SUPPORTED))
    unified, neighbour, processors = discovery.devices()
    assert unified.total_memory_bytes == processors.total_memory_bytes
    assert (unified.has_host_memory, neighbour.has_host_memory) == (True, False)
    assert 0 < unified.free_memory_bytes <= processors.total_memory_bytes
    assert neighbour.free_memory_bytes == 21 * GIB
    assert discovery.host().problems == []


def test_a_card_that_does_not_answer_hides_no_other() -> None:
    discovery = discovered(FakeNvml(memory_error=pynvml.NVML_ERROR_GPU_IS_LOST))
    (card,) = discovery.cuda_devices()
    assert (card.name, card.index) == ("Card 1", 0), "engines count what answers"
    (problem,) = discovery.host().problems
    assert "card 0 does not answer" in problem
    assert discovery.host().cuda_unavailable == ""


@each_case(
    ("error", "words"),
    [
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "different versions"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "no permission"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "no working driver"),
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no working driver"),
        (pynvml.NVML_ERROR_UNKNOWN, "does not answer"),
    ],
)
def test_a_broken_driver_is_named(error: int, words: str) -> None:
    discovery = discovered(FakeNvml(error))
    (problem,) = discovery.host().problems
    assert words in problem
    assert discovery.host().cuda_unavailable == problem
    assert [device.kind for device in discovery.devices()] == ["cpu"]


BROKEN = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH


@each_case(
    ("nvml", "options"),
    [
        (FakeNvml(), {"CUDA_VISIBLE_DEVICES": ""}),
        (FakeNvml(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND), {"has_gpu": False}),
        (FakeNvml(BROKEN), {"HELEXA_DEVICE": "cpu"}),
        (FakeNvml(), {"HELEXA_DEVICE": "cpu"}),
    ],
    ids=["none is visible", "no driver and no GPU", "done without, broken", "done without"],
)
def test_a_host_that_does_without_cards_has_no_problem(nvml: Any, options: Any) -> None:
    discovery = discovered(nvml, **options)
    assert [device.kind for device in discovery.devices()] == ["cpu"]
    assert discovery.host().problems == []
    if "CUDA_VISIBLE_DEVICES" not in options:
        assert discovery.host().cuda_unavailable == ""


def test_a_card_that_is_lost_later_has_no_free_memory_and_is_named_once() -> None:
    nvml = FakeNvml()
    discovery = discovered(nvml)
    nvml.is_lost = True
    for _ in range(2):
        assert [device.free_memory_bytes for device in discovery.cuda_devices()] == [0, 0]
    assert len(discovery.host().problems) == 2
    assert "no longer answers" in discovery.host().cuda_unavailable
    nvml.is_lost = False
    discovery.cuda_devices()
    assert discovery.host().cuda_unavailable == ""


def test_this_host() -> None:
    host = Discovery.run().host()
    assert host.hostname
    assert host.os
    assert host.num_cores >= 1
    assert 0 < host.free_memory_bytes <= host.total_memory_bytes


def test_memory_counts_as_held_once_it_is_touched() -> None:
    num_bytes = 64 * 2**20
    with mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as pages:
        before = held_bytes(os.getpid())
        for start in range(0, num_bytes, mmap.PAGESIZE):
            pages[start] = 1
        assert held_bytes(os.getpid()) - before > 0.9 * num_bytes


def test_what_an_engine_has_started_counts_with_it() -> None:
    """Ranks and stages."""
    grow = "pages = bytearray(b'x') * 2**26; print(flush=True); input()"
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grow!r}])"
    process = subprocess.Popen(
        [sys.executable, "-c", start], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    assert held_bytes(process.pid) > 2**26
    process.communicate(b"\n")
    assert held_bytes(process.pid) == 0
