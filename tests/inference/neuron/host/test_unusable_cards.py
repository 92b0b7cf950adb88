"""Drivers that hang, and cards that torch cannot use."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pynvml

from inference.neuron.host.device_sampler import (
    PROBE_AGAIN_S,
    SILENT_AFTER_S,
    DeviceSampler,
    TorchProblem,
    torch_problem,
)
from tests.cases import each_case
from tests.inference.neuron.conftest import wait_until
from tests.inference.neuron.host.fake_nvml import GIB, FakeNvml, discovered

LIMIT_S = 120.0


class HangingNvml(FakeNvml):
    """Answers until the test makes it hang."""

    def __init__(self) -> None:
        super().__init__()
        self.answers, self.hangs = threading.Event(), threading.Event()
        self.answers.set()

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        if not self.answers.is_set():
            self.hangs.set()
        self.answers.wait(LIMIT_S)
        return super().nvmlDeviceGetMemoryInfo(handle)


def test_a_driver_that_hangs_keeps_nobody_waiting() -> None:
    nvml, now_s = HangingNvml(), 100.0
    sampler = DeviceSampler(
        lambda: discovered(nvml),
        torch_problem=_none,
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
    nvml, asked, answers = HangingNvml(), threading.Event(), threading.Event()
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
    assert [device.kind for device in sampler.devices()] == ["cpu"]
    reason = {"driver": "the NVIDIA driver has not answered", "torch": "PyTorch, which was asked"}
    assert sampler.host().cuda_unavailable.startswith(reason[who])
    assert sampler.host().problems[0].startswith(reason[who])
    answers.set()
    nvml.answers.set()
    _await_cards(sampler)


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
    assert [device.kind for device in sampler.devices()] == ["cpu"]
    assert sampler.host().cuda_unavailable == limit_passed.message
    now_s += PROBE_AGAIN_S
    _await_cards(sampler)


def test_a_host_without_cards_waits_for_no_torch() -> None:
    absent = FakeNvml(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    sampler = DeviceSampler(
        lambda: discovered(absent, has_gpu=False), torch_problem=_must_not_run, silent_after_s=-1.0
    )
    assert (sampler.host().problems, sampler.host().cuda_unavailable) == ([], "")


def test_cards_that_engines_cannot_use_are_no_devices() -> None:
    problem = TorchProblem("torch is too old", is_answered=True)
    sampler = DeviceSampler(lambda: discovered(FakeNvml()), torch_problem=lambda: problem)
    assert [device.kind for device in sampler.devices()] == ["cpu"]
    assert sampler.host().problems == ["torch is too old"]
    assert sampler.host().cuda_unavailable == "torch is too old"


@each_case(
    ("code", "words"),
    [("print(0)", "cannot use the NVIDIA"), ("print(2)", None), ("raise SystemExit(1)", None)],
)
def test_what_torch_reports_of_the_cards(code: str, words: str | None) -> None:
    problem = torch_problem((sys.executable, "-c", code))
    assert problem is None if words is None else problem and words in problem.message


def _await_cards(sampler: DeviceSampler) -> None:
    wait_until(lambda: len(sampler.devices()) > 1)
    assert [device.kind for device in sampler.devices()] == ["cuda", "cuda", "cpu"]
    assert (sampler.host().problems, sampler.host().cuda_unavailable) == ([], "")


def _must_not_run() -> TorchProblem | None:
    raise AssertionError("there is no card to ask about")


def _none() -> None:
    return None
