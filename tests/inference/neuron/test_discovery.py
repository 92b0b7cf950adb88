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
from inference.neuron.discovery import Discovery, cpu_device, held_bytes
from tests.cases import each_case
from tests.inference.neuron.conftest import wait_until

GIB = 1024**3
LIMIT_S = 120.0
OF_DRIVER = {
    "nvmlSystemGetDriverVersion": b"580.10",
    "nvmlSystemGetCudaDriverVersion_v2": 13_000,
    "nvmlDeviceGetCount": 2,
    "nvmlInit": None,
}
OF_CARDS = {
    "nvmlDeviceGetName": "name",
    "nvmlDeviceGetUUID": "uuid",
    "nvmlDeviceGetCudaComputeCapability": "capability",
    "nvmlDeviceGetMaxMigDeviceCount": "max_parts",
    "nvmlDeviceGetUtilizationRates": "utilization",
    "nvmlDeviceGetPowerUsage": "power_mw",
    "nvmlDeviceGetTemperature": "temperature",
}


def card(name: str, uuid: str, free_gib: int, **reported: Any) -> SimpleNamespace:
    """``None``: it does not report it."""
    made = dict.fromkeys(("utilization", "power_mw", "temperature", "max_parts"))
    made |= {"total_gib": 24, "capability": (8, 6), "parts": {}} | reported
    return SimpleNamespace(name=name, uuid=uuid, free_gib=free_gib, **made)


USED = {"utilization": SimpleNamespace(gpu=80), "power_mw": 220_500, "temperature": 61}
FIRST, SECOND = card("Card 0", "GPU-0abc", 20, **USED), card("Card 1", "GPU-1abc", 21)
PARTS = {index: card(f"Part {index}", f"MIG-part{index}", 5, total_gib=6) for index in (0, 2)}
DIVIDED = card("Card 1", "GPU-1abc", 21, max_parts=7, parts=PARTS)


class FakeNvml:
    """NVIDIA's driver with two cards, as far as discovery reads it, that answers until a test makes
    it hang."""

    def __init__(self, init_error: int | None = None, second: Any = SECOND) -> None:
        self.init_error = init_error
        self.cards = (FIRST, second)
        self.memory_errors: dict[str, int] = {}
        self.answers, self.hangs = threading.Event(), threading.Event()
        self.answers.set()

    def __getattr__(self, name: str) -> Any:
        if name in OF_DRIVER:
            return lambda: self.fail(self.init_error) or OF_DRIVER[name]
        if name not in OF_CARDS:
            return getattr(pynvml, name)  # errors and constants

        def of_card(card: Any, sensor: int = pynvml.NVML_TEMPERATURE_GPU) -> Any:
            value = getattr(card, OF_CARDS[name])
            assert sensor == pynvml.NVML_TEMPERATURE_GPU
            self.fail(pynvml.NVML_ERROR_NOT_SUPPORTED if value is None else None)
            return value

        return of_card

    def fail(self, error: int | None) -> None:
        if error is not None:
            raise pynvml.NVMLError(error)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802 - NVML's own names
        return self.cards[index]

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card: Any, index: int) -> Any:  # noqa: N802
        self.fail(None if index in card.parts else pynvml.NVML_ERROR_NOT_FOUND)
        return card.parts[index]

    def nvmlDeviceGetMemoryInfo(self, card: Any) -> Any:  # noqa: N802
        if not self.answers.is_set():
            self.hangs.set()
        self.answers.wait(LIMIT_S)
        self.fail(self.memory_errors.get(card.name))
        return SimpleNamespace(total=card.total_gib * GIB, free=card.free_gib * GIB)


def discovered(nvml: FakeNvml, *, has_gpu: bool = True, **environment: str) -> Discovery:
    return Discovery.run(nvml, has_nvidia_hardware=has_gpu, environment=environment)


def test_cards_and_their_host() -> None:
    discovery = discovered(FakeNvml())
    first, second = discovery.cuda_devices()
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


@each_case(
    ("second", "visible", "names"),
    [
        (SECOND, "1", ["Card 1"]),
        (SECOND, "1,0", ["Card 1", "Card 0"]),
        (SECOND, "GPU-1", ["Card 1"]),
        (SECOND, "0,7,1", ["Card 0"]),
        (DIVIDED, "MIG-part2", ["Part 2"]),
        (DIVIDED, "MIG-part0,0,MIG-part2", ["Part 0", "Card 0", "Part 2"]),
        (DIVIDED, "MIG-part1,0", []),
        (DIVIDED, "1", ["Part 0"]),
        (DIVIDED, None, ["Card 0", "Part 0"]),
    ],
)
def test_cuda_visible_devices(second: Any, visible: str | None, names: list[str]) -> None:
    listed = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    devices = discovered(FakeNvml(second=second), **listed).cuda_devices()
    assert [(device.name, device.index) for device in devices] == [
        (name, index) for index, name in enumerate(names)
    ]
    for device in devices:
        if "Part" in device.name:
            assert (device.total_memory_bytes, device.free_memory_bytes) == (6 * GIB, 5 * GIB)
            assert device.compute_capability == "8.6"


def test_a_card_without_memory_of_its_own_has_the_hosts_and_a_silent_one_hides_no_other() -> None:
    nvml = FakeNvml()
    nvml.memory_errors = {FIRST.name: pynvml.NVML_ERROR_NOT_SUPPORTED}
    discovery = discovered(nvml)
    unified, neighbour = discovery.cuda_devices()
    processors = cpu_device()
    assert unified.total_memory_bytes == processors.total_memory_bytes
    assert (unified.has_host_memory, neighbour.has_host_memory) == (True, False)
    assert 0 < unified.free_memory_bytes <= processors.total_memory_bytes
    assert neighbour.free_memory_bytes == 21 * GIB
    assert discovery.host().problems == []
    nvml.memory_errors = {FIRST.name: pynvml.NVML_ERROR_GPU_IS_LOST}
    discovery = discovered(nvml)
    (answers,) = discovery.cuda_devices()
    assert (answers.name, answers.index) == ("Card 1", 0), "engines count what answers"
    (problem,) = discovery.host().problems
    assert "card 0 does not answer" in problem
    assert discovery.host().cuda_unavailable == ""
    nvml.memory_errors = {}
    discovery = discovered(nvml)
    nvml.memory_errors = dict.fromkeys(("Card 0", "Card 1"), pynvml.NVML_ERROR_GPU_IS_LOST)
    for _ in range(2):  # one that is lost later is named once
        assert [device.free_memory_bytes for device in discovery.cuda_devices()] == [0, 0]
    assert len(discovery.host().problems) == 2
    assert "no longer answers" in discovery.host().cuda_unavailable
    nvml.memory_errors = {}
    discovery.cuda_devices()
    assert discovery.host().cuda_unavailable == ""


@each_case(
    ("error", "options", "problem"),
    [
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, {}, "different versions"),
        (pynvml.NVML_ERROR_NO_PERMISSION, {}, "no permission"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, {}, "no working driver"),
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, {}, "no working driver"),
        (pynvml.NVML_ERROR_UNKNOWN, {}, "does not answer"),
        # It does without.
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, {"has_gpu": False}, ""),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, {"HELEXA_DEVICE": "cpu"}, ""),
        (None, {"HELEXA_DEVICE": "cpu"}, ""),
        (None, {"CUDA_VISIBLE_DEVICES": ""}, ""),
    ],
)
def test_a_broken_driver_is_named(error: int | None, options: Any, problem: str) -> None:
    discovery = discovered(FakeNvml(error), **options)
    assert discovery.cuda_devices() == []
    host = discovery.host()
    assert len(host.problems) == bool(problem) and problem in "".join(host.problems)
    if "CUDA_VISIBLE_DEVICES" not in options:
        assert host.cuda_unavailable == "".join(host.problems)


def test_what_an_engine_has_started_counts_with_it_once_it_is_touched() -> None:
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


def test_a_driver_and_torch_that_are_slow_or_hang_keep_nobody_waiting() -> None:
    nvml, is_asked, answers, now_s = FakeNvml(), threading.Event(), threading.Event(), 100.0
    nvml.answers.clear()

    def slow_answer() -> TorchProblem | None:
        is_asked.set()
        answers.wait(LIMIT_S)
        return None

    sampler = DeviceSampler(
        lambda: discovered(nvml),
        torch_problem=slow_answer,
        first_answer_s=0.05,
        fresh_answer_s=0.05,
        clock=lambda: now_s,
    )
    for asked, answered, reason in (
        (nvml.hangs, nvml.answers, "the NVIDIA driver has not answered"),
        (is_asked, answers, "PyTorch, which was asked"),
    ):
        assert asked.wait(LIMIT_S)
        assert kinds(sampler) == ["cpu"], "cards are unusable until both have answered"
        wait_until(lambda reason=reason: sampler.host().cuda_unavailable.startswith(reason))
        assert sampler.host().problems[0].startswith(reason)
        answered.set()
    await_cards(sampler)
    nvml.hangs.clear()
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


def test_torch_is_asked_of_cards_and_again_after_a_probe_over_its_limit() -> None:
    for code, words in (
        *(("print(0)", "cannot use the NVIDIA"), ("print(2)", None)),
        ("raise SystemExit(1)", None),
    ):
        found = torch_problem((sys.executable, "-c", code))
        assert found is None if words is None else found and words in found.message
    hanging = (sys.executable, "-c", "import time; time.sleep(60)")
    limit_passed = torch_problem(hanging, timeout_s=0.0)
    assert limit_passed is not None and not limit_passed.is_answered
    answers: list[TorchProblem | None] = [limit_passed, None]
    now_s = 100.0
    options: dict[str, Any] = {"first_answer_s": LIMIT_S, "clock": lambda: now_s}
    nvml = FakeNvml()
    sampler = DeviceSampler(
        lambda: discovered(nvml), torch_problem=lambda: answers.pop(0), **options
    )
    assert kinds(sampler) == ["cpu"]
    assert sampler.host().cuda_unavailable == limit_passed.message
    now_s += PROBE_AGAIN_S
    await_cards(sampler)
    problem = TorchProblem("torch is too old", is_answered=True)
    sampler = DeviceSampler(lambda: discovered(nvml), torch_problem=lambda: problem)
    assert kinds(sampler) == ["cpu"]
    assert sampler.host().problems == ["torch is too old"]
    assert sampler.host().cuda_unavailable == "torch is too old"
    absent = FakeNvml(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    sampler = DeviceSampler(
        lambda: discovered(absent, has_gpu=False),
        torch_problem=lambda: problem,
        silent_after_s=-1.0,
    )
    assert (sampler.host().problems, sampler.host().cuda_unavailable) == ([], ""), "nor asked"
