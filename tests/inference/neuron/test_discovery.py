"""A host's report with GPUs, with a broken driver or one that hangs, and without either."""

from __future__ import annotations

import mmap
import os
import platform
import subprocess
import sys
import threading
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pynvml

from inference.neuron.device_sampler import (
    PROBE_AGAIN_S,
    SILENT_AFTER_S,
    DeviceSampler,
    TorchProblem,
    torch_problem,
)
from inference.neuron.discovery import Discovery, held_bytes
from tests.cases import each_case
from tests.inference.neuron.conftest import wait_until

GIB = 1024**3
LIMIT_S = 120.0
OF_DRIVER = {
    "nvmlSystemGetDriverVersion": b"580.10",
    "nvmlSystemGetCudaDriverVersion_v2": 13_000,
    "nvmlDeviceGetCount": 2,
}
OF_CARDS = {
    "nvmlDeviceGetCudaComputeCapability": ((8, 6), (8, 6)),
    "nvmlDeviceGetName": ("Card 0", "Card 1"),
    "nvmlDeviceGetUUID": ("GPU-0abc", "GPU-1abc"),
    # ``None``: a card does not report it.
    "nvmlDeviceGetMaxMigDeviceCount": (None, None),
    "nvmlDeviceGetUtilizationRates": (SimpleNamespace(gpu=80, memory=20), None),
    "nvmlDeviceGetPowerUsage": (220_500, None),  # in milliwatts
}


class FakeNvml:
    """NVIDIA's driver with two cards, as far as discovery reads it, that answers until a test makes
    it hang."""

    def __init__(self, init_error: int | None = None, memory_error: int | None = None) -> None:
        """What nvmlInit raises, and what the first card's memory does."""
        self.init_error = init_error
        self.memory_error = memory_error
        self.is_lost = False
        self.answers, self.hangs = threading.Event(), threading.Event()
        self.answers.set()

    def __getattr__(self, name: str) -> Any:
        if name in OF_DRIVER:
            return lambda: OF_DRIVER[name]
        if name not in OF_CARDS:
            return getattr(pynvml, name)  # errors and constants

        def of_card(handle: int) -> Any:
            value = OF_CARDS[name][handle if handle < 2 else 0]  # of a part as of the first card
            if value is None:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return value

        return of_card

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's own names
        if self.init_error is not None:
            raise pynvml.NVMLError(self.init_error)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        if not self.answers.is_set():
            self.hangs.set()
        self.answers.wait(LIMIT_S)
        error = pynvml.NVML_ERROR_GPU_IS_LOST if self.is_lost else self.memory_error
        if error is not None and (self.is_lost or handle == 0):
            raise pynvml.NVMLError(error)
        return SimpleNamespace(total=24 * GIB, free=(20 + handle) * GIB)

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:  # noqa: N802
        if handle == 1 or sensor != pynvml.NVML_TEMPERATURE_GPU:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return 61


def discovered(nvml: FakeNvml, *, has_gpu: bool = True, **environment: str) -> Discovery:
    return Discovery.run(nvml, has_nvidia_hardware=has_gpu, environment=environment)


def test_cards_and_their_host() -> None:
    discovery = discovered(FakeNvml())
    first, second, processors = discovery.devices()
    assert processors.kind == "cpu"
    assert (first.kind, first.name, first.index) == ("cuda", "Card 0", 0)
    assert (first.compute_capability, first.driver) == ("8.6", "580.10")
    assert (second.total_memory_bytes, second.free_memory_bytes) == (24 * GIB, 21 * GIB)
    assert (first.utilization_percent, first.temperature_c, first.power_w) == (80, 61, 220.5)
    assert (second.utilization_percent, second.temperature_c, second.power_w) == (None, None, None)
    host = discovery.host()
    assert host.cuda_version == "13.0" and host.torch_version == metadata.version("torch")
    assert host.kernel == f"{platform.system()} {platform.release()}" != host.os
    assert host.hostname and host.os and host.num_cores >= 1
    assert 0 < host.free_memory_bytes <= host.total_memory_bytes


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
        return f"Part {handle - 100}" if handle >= 100 else f"Card {handle}"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        if handle >= 100:
            return SimpleNamespace(total=6 * GIB, free=5 * GIB)
        return super().nvmlDeviceGetMemoryInfo(handle)


@each_case(
    ("nvml", "visible", "names"),
    [
        (FakeNvml(), "1", ["Card 1"]),
        (FakeNvml(), "1,0", ["Card 1", "Card 0"]),
        (FakeNvml(), "GPU-1", ["Card 1"]),
        (FakeNvml(), "0,7,1", ["Card 0"]),
        (DividedNvml(), "MIG-part2", ["Part 2"]),
        (DividedNvml(), "MIG-part0,0,MIG-part2", ["Part 0", "Card 0", "Part 2"]),
        (DividedNvml(), "MIG-part1,0", []),
        (DividedNvml(), "1", ["Part 0"]),
        (DividedNvml(), None, ["Card 0", "Part 0"]),
    ],
)
def test_engines_see_what_cuda_visible_devices_leaves(
    nvml: FakeNvml, visible: str | None, names: list[str]
) -> None:
    """A divided card is never offered whole: a process gets one part of it."""
    listed = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    devices = discovered(nvml, **listed).cuda_devices()
    assert [(device.name, device.index) for device in devices] == [
        (name, index) for index, name in enumerate(names)
    ]
    for device in devices:
        if "Part" in device.name:
            assert (device.total_memory_bytes, device.free_memory_bytes) == (6 * GIB, 5 * GIB)
            assert device.compute_capability == "8.6"


def test_a_card_without_memory_of_its_own_has_the_hosts_and_a_silent_one_hides_no_other() -> None:
    discovery = discovered(FakeNvml(memory_error=pynvml.NVML_ERROR_NOT_SUPPORTED))
    unified, neighbour, processors = discovery.devices()
    assert unified.total_memory_bytes == processors.total_memory_bytes
    assert (unified.has_host_memory, neighbour.has_host_memory) == (True, False)
    assert 0 < unified.free_memory_bytes <= processors.total_memory_bytes
    assert neighbour.free_memory_bytes == 21 * GIB
    assert discovery.host().problems == []
    discovery = discovered(FakeNvml(memory_error=pynvml.NVML_ERROR_GPU_IS_LOST))
    (answers,) = discovery.cuda_devices()
    assert (answers.name, answers.index) == ("Card 1", 0), "engines count what answers"
    (problem,) = discovery.host().problems
    assert "card 0 does not answer" in problem
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


@each_case(
    ("error", "options"),
    [
        (None, {"CUDA_VISIBLE_DEVICES": ""}),
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, {"has_gpu": False}),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, {"HELEXA_DEVICE": "cpu"}),
        (None, {"HELEXA_DEVICE": "cpu"}),
    ],
    ids=["none is visible", "no driver and no GPU", "done without, broken", "done without"],
)
def test_a_host_that_does_without_cards_has_no_problem(error: Any, options: Any) -> None:
    discovery = discovered(FakeNvml(error), **options)
    assert [device.kind for device in discovery.devices()] == ["cpu"]
    assert discovery.host().problems == []
    if "CUDA_VISIBLE_DEVICES" not in options:
        assert discovery.host().cuda_unavailable == ""


def test_what_an_engine_has_started_counts_with_it_once_it_is_touched() -> None:
    """Ranks and stages."""
    num_bytes = 64 * 2**20
    with mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as pages:
        before = held_bytes(os.getpid())
        for start in range(0, num_bytes, mmap.PAGESIZE):
            pages[start] = 1
        assert held_bytes(os.getpid()) - before > 0.9 * num_bytes
    grow = "pages = bytearray(b'x') * 2**26; print(flush=True); input()"
    begin = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grow!r}])"
    process = subprocess.Popen(
        [sys.executable, "-c", begin], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    assert held_bytes(process.pid) > 2**26
    process.communicate(b"\n")
    assert held_bytes(process.pid) == 0


def kinds(sampler: DeviceSampler) -> list[str]:
    return [device.kind for device in sampler.devices()]


def await_cards(sampler: DeviceSampler) -> None:
    wait_until(lambda: len(sampler.devices()) > 1)
    assert kinds(sampler) == ["cuda", "cuda", "cpu"]
    assert (sampler.host().problems, sampler.host().cuda_unavailable) == ([], "")


def test_a_driver_that_hangs_keeps_nobody_waiting() -> None:
    nvml, now_s = FakeNvml(), 100.0
    sampler = DeviceSampler(
        lambda: discovered(nvml),
        torch_problem=lambda: None,
        first_answer_s=LIMIT_S,
        fresh_answer_s=0.05,
        clock=lambda: now_s,
    )
    assert [device.kind for device in sampler.measure()] == ["cuda", "cuda", "cpu"]
    assert sampler.host().problems == []
    nvml.answers.clear()
    wait_until(nvml.hangs.is_set)
    now_s += SILENT_AFTER_S + 1
    (problem,) = sampler.host().problems
    assert "has not answered for 11 s" in problem
    assert sampler.host().cuda_unavailable.startswith("the NVIDIA driver has not answered")
    cards = sampler.measure()[:2]  # returns although NVML does not answer
    assert [card.free_memory_bytes for card in cards] == [0, 0]
    nvml.answers.set()
    wait_until(lambda: sampler.measure() and not sampler.host().problems)
    assert [card.free_memory_bytes for card in sampler.devices()[:2]] == [20 * GIB, 21 * GIB]
    assert sampler.host().cuda_unavailable == ""


@each_case("who", ["driver", "torch"])
def test_cards_are_unusable_until_the_driver_and_torch_have_answered(who: str) -> None:
    """A cold import of torch may take longer than a start waits."""
    nvml, asked, answers = FakeNvml(), threading.Event(), threading.Event()
    if who == "driver":
        nvml.answers.clear()
        asked = nvml.hangs

    def slow_answer() -> TorchProblem | None:
        asked.set()
        if who == "torch":
            answers.wait(LIMIT_S)
        return None

    sampler = DeviceSampler(
        lambda: discovered(nvml), torch_problem=slow_answer, first_answer_s=0.05
    )
    assert asked.wait(LIMIT_S)
    assert kinds(sampler) == ["cpu"]
    reason = {"driver": "the NVIDIA driver has not answered", "torch": "PyTorch, which was asked"}
    assert sampler.host().cuda_unavailable.startswith(reason[who])
    assert sampler.host().problems[0].startswith(reason[who])
    answers.set()
    nvml.answers.set()
    await_cards(sampler)


def test_torch_is_asked_again_after_a_probe_over_its_limit() -> None:
    hanging = (sys.executable, "-c", "import time; time.sleep(60)")
    limit_passed = torch_problem(hanging, timeout_s=0.0)
    assert limit_passed is not None and not limit_passed.is_answered
    answers: list[TorchProblem | None] = [limit_passed, None]
    now_s = 100.0
    sampler = DeviceSampler(
        lambda: discovered(FakeNvml()),
        torch_problem=lambda: answers.pop(0),
        first_answer_s=LIMIT_S,
        clock=lambda: now_s,
    )
    assert kinds(sampler) == ["cpu"]
    assert sampler.host().cuda_unavailable == limit_passed.message
    now_s += PROBE_AGAIN_S
    await_cards(sampler)


def test_cards_that_engines_cannot_use_are_no_devices_and_without_cards_torch_is_not_asked() -> (
    None
):
    problem = TorchProblem("torch is too old", is_answered=True)
    sampler = DeviceSampler(lambda: discovered(FakeNvml()), torch_problem=lambda: problem)
    assert kinds(sampler) == ["cpu"]
    assert sampler.host().problems == ["torch is too old"]
    assert sampler.host().cuda_unavailable == "torch is too old"
    absent = FakeNvml(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    sampler = DeviceSampler(
        lambda: discovered(absent, has_gpu=False),
        torch_problem=lambda: problem,
        silent_after_s=-1.0,
    )
    assert (sampler.host().problems, sampler.host().cuda_unavailable) == ([], "")


@each_case(
    ("code", "words"),
    [("print(0)", "cannot use the NVIDIA"), ("print(2)", None), ("raise SystemExit(1)", None)],
)
def test_what_torch_reports_of_the_cards(code: str, words: str | None) -> None:
    problem = torch_problem((sys.executable, "-c", code))
    assert problem is None if words is None else problem and words in problem.message
