"""Puts a loaded model to sleep and wakes it: its weights stay in the host's memory, everything else
of its engine is freed and built again.

    awake ──fall_asleep──▶ KV is dropped ──▶ RestingModels, of this process and of others
      ▲                                            │
      └──wake── warmed up ◀── engine built again ◀─┘

The prefix cache is lost with its blocks, except for the part that is on disk. For the engine's
thread, while nothing runs.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from inference.engine.engine import Engine
from inference.engine.load.memory.resting import RestingModels, Sleeps
from inference.engine.load.trial.trial import DeviceTrial
from inference.protocol.load_report import (
    AsleepBytes,
)

log = logging.getLogger(__name__)


class OtherSleepers(Protocol):
    """Processes that have parts of the model."""

    def fall_asleep(self) -> Sequence[tuple[str, AsleepBytes]]:
        """Returns the device of each, and what it holds."""
        ...

    def wake(self) -> None:
        """Raises ``MemoryError`` where a device has no room."""
        ...


class Captures(Protocol):
    """A model whose decode steps may be captured."""

    @property
    def capture_in_words(self) -> str: ...


class Sleeper:
    """Owns the models while they sleep; the engine's owner drops its reference."""

    def __init__(
        self,
        models: Sequence[Sleeps],
        build: Callable[[], Engine],
        *,
        process_bytes: int,
        others: OtherSleepers | None = None,
        captures: Sequence[Captures] = (),
    ) -> None:
        """``models``: the one that answers, and what drafts for it. ``build`` makes an engine
        as the load did, with KV of its own, and warms it up. ``process_bytes``: what this process
        takes of its device beside what torch reserves. ``captures``: those of the models whose
        decode steps ``build`` captures again."""
        self._own = RestingModels(models, process_bytes=process_bytes)
        self._device = models[0].device
        self._others = others
        self._build = build
        self._captures = captures
        self._loaded_captures: list[str] | None = None
        self.capture_problem = ""
        """The decode steps that the load captured and waking did not, as text; empty: none."""

    def fall_asleep(self) -> AsleepBytes:
        """Puts the models to sleep and returns the memory that they still hold. Call it once the
        last reference to the engine is gone. Raises whatever a host without memory raises: the
        process is of no use after that."""
        started_s = time.monotonic()
        if self._loaded_captures is None:
            self._loaded_captures = self._captures_in_words()
        held = self._own.fall_asleep()
        if self._others is not None:
            own = str(self._device), held
            held = asleep_together([own, *self._others.fall_asleep()])
        log.info(
            "asleep after %.1f s: %d bytes of the device, %d of the host",
            time.monotonic() - started_s,
            held.device_bytes,
            held.host_bytes,
        )
        return held

    def wake(self) -> Engine:
        """Gives an engine as after the load. Raises what a device without memory raises."""
        self._own.wake()
        if self._others is not None:
            self._others.wake()
        engine = self._build()
        self.capture_problem = self._lost_captures()
        engine.load_warnings = self.warnings
        return engine

    @property
    def warnings(self) -> list[str]:
        """The reasons, as text, why sleeping and waking are slower than they could be, and the
        model after it woke."""
        return [problem for problem in (self._own.problem, self.capture_problem) if problem]

    def _captures_in_words(self) -> list[str]:
        return [model.capture_in_words for model in self._captures]

    def _lost_captures(self) -> str:
        assert self._loaded_captures is not None, "it fell asleep"
        pairs = zip(self._loaded_captures, self._captures_in_words(), strict=True)
        lost = [f"{now} where the load had {before}" for before, now in pairs if now != before]
        return f"after waking: {'; '.join(lost)}" if lost else ""


def asleep_together(parts: Sequence[tuple[str, AsleepBytes]]) -> AsleepBytes:
    """Sums the memory of a model whose parts sleep in several processes. ``parts``: each part's
    device and the memory it still holds."""
    by_device: Counter[str] = Counter()
    for device, part in parts:
        by_device[device] += part.device_bytes
    return AsleepBytes(
        device_bytes=by_device.total(),
        host_bytes=sum(part.host_bytes for _, part in parts),
        by_device=dict(by_device),
    )


def asleep_bytes(trial: DeviceTrial, held_bytes: int) -> AsleepBytes:
    """What a model will hold at most of one of its devices, before its KV is there.
    ``held_bytes``: what it holds of a card, as the allocator counts."""
    if trial.device.type != "cuda":
        return AsleepBytes(device_bytes=trial.process_bytes + trial.load_bytes)
    return AsleepBytes(device_bytes=trial.process_bytes, host_bytes=held_bytes)
