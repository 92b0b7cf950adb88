"""Samples the devices in a thread of its own, so that a hanging driver blocks only that thread.

    sampler thread ─▶ Discovery (NVML) ─▶ last sample ─▶ heartbeat, at once
                                                   └───▶ a load that wants it fresh waits, bounded

Where the driver has not answered for a while its cards have no free memory, and are named as a
problem; when it answers again they come back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from inference.neuron.host.discovery import Discovery, cpu_device
from inference.neuron.host.torch_probe import torch_problem
from inference.neuron.replicas.held_memory import held_bytes
from inference.protocol.heartbeat import DeviceInfo, HostInfo
from inference.supervised_threads import SupervisedThread

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
FIRST_ANSWER_S = 10.0
"""How long a start waits for the driver; its cards come later then."""
FRESH_ANSWER_S = 3.0
SILENT_AFTER_S = 10.0


class Devices(Protocol):
    """What a neuron asks of its host."""

    def host(self) -> HostInfo: ...

    def devices(self) -> list[DeviceInfo]:
        """At once, a second old at most where all is well."""
        ...

    def measure(self) -> list[DeviceInfo]:
        """Sample now, and wait for the result up to a limit."""
        ...

    def held_bytes(self, pid: int) -> int:
        """What that process holds of the host's memory."""
        ...


class DeviceSampler:
    def __init__(
        self,
        discover: Callable[[], Discovery] = Discovery.run,
        *,
        torch_problem: Callable[[], str | None] = torch_problem,
        first_answer_s: float = FIRST_ANSWER_S,
        fresh_answer_s: float = FRESH_ANSWER_S,
        silent_after_s: float = SILENT_AFTER_S,
    ) -> None:
        """Waits for the first answer. ``discover`` is called in the thread, and where it finds
        cards ``torch_problem``: why engines cannot use them."""
        self._discover = discover
        self._torch_problem = torch_problem
        self._fresh_answer_s = fresh_answer_s
        self._silent_after_s = silent_after_s
        self._changed = threading.Condition()
        self._discovery: Discovery | None = None
        self._cuda: list[DeviceInfo] = []
        self._num_asked = 0
        self._num_answered = 0
        self._answered_s = time.monotonic()
        SupervisedThread(self._sample_for_ever, name="devices").start()
        self._ask(first_answer_s)

    def host(self) -> HostInfo:
        discovery = self._discovery or Discovery()
        host = discovery.host()
        silent_s = self._silent_s()
        if silent_s > self._silent_after_s:
            problem = f"the NVIDIA driver has not answered for {silent_s:.0f} s"
            host = msgspec.structs.replace(host, problems=[*host.problems, problem])
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

    def held_bytes(self, pid: int) -> int:
        return held_bytes(pid)

    def _ask(self, timeout_s: float) -> None:
        """Asks, and waits for an answer that was asked for after this call."""
        with self._changed:
            self._num_asked += 1
            wanted = self._num_asked
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._num_answered >= wanted, timeout_s)

    def _silent_s(self) -> float:
        return time.monotonic() - self._answered_s

    def _sample_for_ever(self) -> None:
        discovery = self._discover()
        if discovery.cuda_devices() and (problem := self._torch_problem()) is not None:
            discovery = Discovery(problems=[*discovery.problems, problem], cuda_unavailable=problem)
            log.warning("%s", problem)
        with self._changed:
            self._discovery = discovery
        while True:
            with self._changed:
                asked = self._num_asked
            try:
                cuda = discovery.cuda_devices()
            except Exception:
                log.exception("the devices could not be asked")
                cuda = []
            with self._changed:
                self._cuda = cuda
                self._answered_s = time.monotonic()
                self._num_answered = asked
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._num_asked > self._num_answered, INTERVAL_S)
