"""Puts a loaded model to sleep and wakes it: its weights stay in the host's memory, everything else
that its engine held goes, and is made anew.

    awake ──fall_asleep──▶ KV, captured steps and scratch are dropped; on CUDA the weights leave
      ▲                                                                            │
      └──wake── warmed up ◀── engine built anew ◀── the weights are back ◀──────────┘

The prefix cache goes with its blocks; what is on the disk of it is found there again. For the
engine's thread, while nothing runs.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Sequence

import torch

from inference.engine.engine import Engine
from inference.engine.load.memory.away_weights import AwayWeights
from inference.engine.load.memory.memory_use import (
    anonymous_bytes,
    cuda_process_bytes,
    give_back_freed,
)
from inference.models.backend import AnyModel
from inference.protocol.load import AsleepBytes

log = logging.getLogger(__name__)


class Sleeper:
    """Owns the models while they sleep; who has the engine lets go of it."""

    def __init__(
        self,
        models: Sequence[AnyModel],
        build: Callable[[], Engine],
        *,
        process_bytes: int,
        beside: object = None,
    ) -> None:
        """``models``: the one that answers, and one that drafts for it. ``build`` makes an engine
        as the load did, with KV of its own, and warms it up. ``process_bytes``: what the process
        takes of its device beside what torch reserves. ``beside``: what else has weights."""
        self._models = models
        self._device = models[0].device
        self._build = build
        self._process_bytes = process_bytes
        self._away = AwayWeights((models, beside), self._device)

    def fall_asleep(self) -> AsleepBytes:
        """After the last reference to the engine is gone. Raises what a host without memory
        raises: then the process is of no use any more."""
        started_s = time.monotonic()
        for model in self._models:
            model.sleep()
        gc.collect()
        if self._device.type == "cuda":
            self._away.take()
            torch.cuda.empty_cache()
        give_back_freed()
        held = self._held()
        log.info(
            "asleep after %.1f s: %d bytes of the device, %d of the host",
            time.monotonic() - started_s,
            held.device_bytes,
            held.host_bytes,
        )
        return held

    def wake(self) -> Engine:
        """Gives an engine as after the load. Raises what a device without memory raises."""
        self._away.give_back()
        for model in self._models:
            model.wake()
        engine = self._build()
        engine.load_warnings = self.warnings
        return engine

    @property
    def warnings(self) -> list[str]:
        """In words: what makes sleeping and waking slower than it could be."""
        return [self._away.problem] if self._away.problem else []

    def _held(self) -> AsleepBytes:
        device = self._device
        if device.type != "cuda":
            return AsleepBytes(device_bytes=anonymous_bytes())
        reserved_bytes = torch.cuda.memory_reserved(device)
        return AsleepBytes(
            device_bytes=max(
                reserved_bytes + self._process_bytes,
                cuda_process_bytes(device),
            ),
            host_bytes=self._away.num_bytes,
        )


def asleep_bytes(model: AnyModel, process_bytes: int, load_bytes: int) -> AsleepBytes:
    """What it will hold at most, before its KV is there. ``load_bytes``: all that it took beyond
    ``process_bytes``, its largest steps included."""
    if model.device.type != "cuda":
        return AsleepBytes(device_bytes=process_bytes + load_bytes)
    held_bytes = torch.cuda.memory_allocated(model.device)
    return AsleepBytes(device_bytes=process_bytes, host_bytes=held_bytes)
