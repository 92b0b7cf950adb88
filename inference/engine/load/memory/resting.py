"""What a process keeps of its models while they sleep, and how it comes back.

    awake ──fall_asleep──▶ captured steps and scratch are dropped; on CUDA the weights leave
      ▲                                              │
      └──────────wake── the weights are back ◀───────┘

Engines and storages of keys and values are dropped before, and made again afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from inference.engine.load.memory.away_weights import AwayWeights
from inference.engine.load.memory.memory_use import (
    anonymous_bytes,
    cuda_process_bytes,
)
from inference.garbage import collect_all, release_freed_memory
from inference.protocol.load_report import AsleepBytes


class Sleeps(Protocol):
    """A model, a stage of one, or the layer that drafts for one."""

    @property
    def device(self) -> torch.device: ...

    def sleep(self) -> None: ...

    def wake(self) -> None: ...


class RestingModels:
    def __init__(self, models: Sequence[Sleeps], *, process_bytes: int) -> None:
        """``models`` are on one device. ``process_bytes``: what the process takes there beside what
        torch reserves."""
        self._models = models
        self._device = models[0].device
        self._process_bytes = process_bytes
        self._away = AwayWeights(models, self._device)

    @property
    def problem(self) -> str:
        """What makes sleeping and waking slower than it could be, in words; empty: nothing."""
        return self._away.problem

    def fall_asleep(self) -> AsleepBytes:
        """Raises what a host without memory raises: then the process is of no use any more."""
        for model in self._models:
            model.sleep()
        collect_all()
        if self._device.type == "cuda":
            self._away.take()
            torch.cuda.empty_cache()
        release_freed_memory()
        return self._held()

    def wake(self) -> None:
        """Raises what a device without memory raises."""
        self._away.restore()
        for model in self._models:
            model.wake()

    def _held(self) -> AsleepBytes:
        device = self._device
        if device.type != "cuda":
            return AsleepBytes(device_bytes=anonymous_bytes())
        reserved_bytes = torch.cuda.memory_reserved(device)
        return AsleepBytes(
            device_bytes=max(reserved_bytes + self._process_bytes, cuda_process_bytes(device)),
            host_bytes=self._away.num_bytes,
        )
