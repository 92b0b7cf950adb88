"""Samples the devices in a thread of its own, so that a hanging driver blocks only that thread.

    sampler thread ─▶ Discovery (NVML) ─▶ last sample ─▶ heartbeat, at once
                                                   └───▶ a load that wants it fresh waits, bounded

Cards cannot be used before the first sample, nor while the driver has not answered for a while: the
host reports that in ``problems`` and ``cuda_unavailable``.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from inference.neuron.discovery import (
    Discovery,
    TorchProblem,
    cpu_device,
    held_bytes,
    torch_problem,
)
from inference.protocol.heartbeat import DeviceInfo, HostInfo
from inference.supervised_threads import SupervisedThread

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
FIRST_ANSWER_S = 10.0
FRESH_ANSWER_S = 3.0
SILENT_AFTER_S = 10.0
PROBE_AGAIN_S = 60.0
DRIVER = "the NVIDIA driver"
TORCH = "PyTorch, which was asked for the NVIDIA devices,"


class Devices(Protocol):
    def host(self) -> HostInfo: ...

    def devices(self) -> list[DeviceInfo]:
        """Returns at once."""
        ...

    def measure(self) -> list[DeviceInfo]: ...

    def held_bytes(self, pid: int) -> int: ...


class DeviceSampler:
    held_bytes = staticmethod(held_bytes)

    def __init__(
        self,
        discover: Callable[[], Discovery] = Discovery.run,
        *,
        torch_problem: Callable[[], TorchProblem | None] = torch_problem,
        first_answer_s: float = FIRST_ANSWER_S,
        fresh_answer_s: float = FRESH_ANSWER_S,
        silent_after_s: float = SILENT_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Blocks for ``first_answer_s`` at most. ``discover`` and ``torch_problem`` are called in
        the thread."""
        self._discover = discover
        self._torch_problem = torch_problem
        self._fresh_answer_s = fresh_answer_s
        self._silent_after_s = silent_after_s
        self._clock = clock
        self._changed = threading.Condition()
        self._discovery: Discovery | None = None
        self._waits_for = DRIVER
        self._cuda: list[DeviceInfo] = []
        self._num_asked = 0
        self._num_answered = 0
        self._answered_s = self._clock()
        SupervisedThread(self._sample_for_ever, name="devices").start()
        self._ask(first_answer_s)

    def host(self) -> HostInfo:
        discovery = self._discovery
        host = (discovery or Discovery()).host()
        silent_s = self._silent_s()
        if discovery is None or (discovery.has_cards and silent_s > self._silent_after_s):
            problem = f"{self._waits_for} has not answered for {silent_s:.0f} s"
            host = msgspec.structs.replace(
                host, problems=[*host.problems, problem], cuda_unavailable=problem
            )
        return host

    def devices(self) -> list[DeviceInfo]:
        with self._changed:
            cuda = self._cuda
        if self._silent_s() > self._silent_after_s:
            cuda = [msgspec.structs.replace(card, free_memory_bytes=0) for card in cuda]
        return [*cuda, cpu_device()]

    def measure(self) -> list[DeviceInfo]:
        if self._cuda:
            self._ask(self._fresh_answer_s)
        return self.devices()

    def _ask(self, timeout_s: float) -> None:
        """Waits for an answer that was asked for after this call."""
        with self._changed:
            self._num_asked += 1
            wanted = self._num_asked
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._num_answered >= wanted, timeout_s)

    def _silent_s(self) -> float:
        return self._clock() - self._answered_s

    def _sample_for_ever(self) -> None:
        usable = found = self._discover()
        probe_at_s = -math.inf if found.cuda_devices() else math.inf
        while True:
            if self._clock() >= probe_at_s:
                usable, probe_at_s = self._probe(found)
            asked = self._num_asked
            try:
                cuda = usable.cuda_devices()
            except Exception:
                log.exception("the devices could not be asked")
                cuda = []
            with self._changed:
                self._discovery, self._cuda = usable, cuda
                self._answered_s, self._num_answered = self._clock(), asked
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._num_asked > self._num_answered, INTERVAL_S)

    def _probe(self, found: Discovery) -> tuple[Discovery, float]:
        self._waits_for = TORCH
        problem = self._torch_problem()
        self._waits_for = DRIVER
        if problem is None:
            return found, math.inf
        log.warning("%s", problem.message)
        problems = [*found.problems, problem.message]
        usable = Discovery(problems=problems, cuda_unavailable=problem.message)
        return usable, math.inf if problem.is_answered else self._clock() + PROBE_AGAIN_S
