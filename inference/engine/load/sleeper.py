"""Puts a loaded model to sleep and wakes it: its weights stay in the host's memory, everything else
of its engine is freed and built again.

    awake ──fall_asleep──▶ KV is dropped ──▶ RestingModels, of this process and of others
      ▲                                            │  captured steps and scratch are dropped;
      │                                            │  on CUDA AwayWeights take the weights
      └──wake── warmed up ◀── engine built again ◀─┘

Of the prefix cache only the part on disk survives. For the engine's thread, while nothing runs.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, Protocol

import torch

from inference.engine.divided.stage_processes import StageProcesses
from inference.engine.engine import Engine
from inference.engine.load.memory_use import anonymous_bytes, cuda_process_bytes
from inference.engine.load.trial import DeviceTrial, synchronize
from inference.garbage import collect_all, release_freed_memory
from inference.models.backend import AnyModel
from inference.protocol.load_report import AsleepBytes

log = logging.getLogger(__name__)

COPIED_TOGETHER_BYTES = 1 << 30


class Sleeps(Protocol):
    @property
    def device(self) -> torch.device: ...

    def sleep(self) -> None: ...

    def wake(self) -> None: ...


class RestingModels:
    """Engines and KV storages are dropped before, and made again afterwards."""

    def __init__(self, models: Sequence[Sleeps], *, process_bytes: int) -> None:
        """``models`` are on one device. ``process_bytes``: there, beside what torch reserves."""
        self._models = models
        self._device = models[0].device
        self._process_bytes = process_bytes
        self._away = AwayWeights(models, self._device)

    @property
    def problem(self) -> str:
        return self._away.problem

    def fall_asleep(self) -> AsleepBytes:
        """Raises ``RuntimeError`` and ``MemoryError``: then the process is of no use any more."""
        for model in self._models:
            model.sleep()
        collect_all()
        if self._device.type == "cuda":
            self._away.take()
            torch.cuda.empty_cache()
        release_freed_memory()
        return self._held()

    def wake(self) -> None:
        """Raises ``RuntimeError`` where the device has no memory."""
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


class Sleeper:
    def __init__(
        self,
        models: Sequence[Sleeps],
        build: Callable[[], Engine],
        *,
        process_bytes: int,
        others: StageProcesses | None = None,
        captures: Sequence[AnyModel] = (),
    ) -> None:
        """``build`` makes an engine as the load did, with KV of its own, and warms it up.
        ``captures``: those of ``models`` whose decode steps it captures again."""
        self._own = RestingModels(models, process_bytes=process_bytes)
        self._device = models[0].device
        self._others = others
        self._build = build
        self._captures = captures
        self._loaded_captures: list[str] | None = None
        self.capture_problem = ""

    def fall_asleep(self) -> AsleepBytes:
        """Call it once the last reference to the engine is gone. Raises where the host has no
        memory: the process is of no use after that."""
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
        """Raises where the device has no memory."""
        self._own.wake()
        if self._others is not None:
            self._others.wake()
        engine = self._build()
        self.capture_problem = self._lost_captures()
        engine.load_warnings = self.warnings
        return engine

    @property
    def warnings(self) -> list[str]:
        return [problem for problem in (self._own.problem, self.capture_problem) if problem]

    def _captures_in_words(self) -> list[str]:
        return [model.capture_in_words for model in self._captures]

    def _lost_captures(self) -> str:
        assert self._loaded_captures is not None, "it fell asleep"
        pairs = zip(self._loaded_captures, self._captures_in_words(), strict=True)
        lost = [f"{now} where the load had {before}" for before, now in pairs if now != before]
        return f"after waking: {'; '.join(lost)}" if lost else ""


def asleep_together(parts: Sequence[tuple[str, AsleepBytes]]) -> AsleepBytes:
    by_device: Counter[str] = Counter()
    for device, part in parts:
        by_device[device] += part.device_bytes
    return AsleepBytes(
        device_bytes=by_device.total(),
        host_bytes=sum(part.host_bytes for _, part in parts),
        by_device=dict(by_device),
    )


def asleep_bytes(trial: DeviceTrial, held_bytes: int) -> AsleepBytes:
    """Before KV is there. ``held_bytes``: of a card, as the allocator counts."""
    if trial.device.type != "cuda":
        return AsleepBytes(device_bytes=trial.process_bytes + trial.load_bytes)
    return AsleepBytes(device_bytes=trial.process_bytes, host_bytes=held_bytes)


class AwayWeights:
    """A storage is emptied and filled again, so that every tensor over it keeps its shape. Nothing
    may use the model in between."""

    def __init__(self, model: object, device: torch.device) -> None:
        self._model = model
        self._device = device
        self._away: list[tuple[torch.UntypedStorage, torch.Tensor]] = []
        self._locked: list[torch.Tensor] = []
        self.problem = ""

    @property
    def num_bytes(self) -> int:
        return sum(buffer.nbytes for _, buffer in self._away)

    def take(self) -> None:
        assert not self._away
        for storage in storages_of(self._model, self._device):
            if not storage.nbytes() or not storage.resizable():
                continue
            buffer = torch.empty(storage.nbytes(), dtype=torch.uint8)
            buffer.copy_(_bytes_of(storage))
            self._lock_pages(buffer)
            storage.resize_(0)
            self._away.append((storage, buffer))

    def restore(self) -> None:
        copied_bytes = 0
        for storage, buffer in self._away:
            storage.resize_(buffer.nbytes)
            _bytes_of(storage).copy_(buffer, non_blocking=True)
            copied_bytes += buffer.nbytes
            if copied_bytes >= COPIED_TOGETHER_BYTES:
                synchronize(self._device)
                copied_bytes = 0
        synchronize(self._device)
        self._unlock_pages()
        self._away.clear()

    def _lock_pages(self, buffer: torch.Tensor) -> None:
        """A card copies twice as fast from locked pages. torch's own allocator of them rounds up to
        powers of two and gives none back. Where the driver refuses once (a container's limit on
        locked memory), the rest stays unlocked."""
        if self._device.type != "cuda" or self.problem:
            return
        cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        if error := int(cudart.cudaHostRegister(buffer.data_ptr(), buffer.nbytes, 0)):
            self._refused("locked", error)
        else:
            self._locked.append(buffer)

    def _unlock_pages(self) -> None:
        locked, self._locked = self._locked, []
        for buffer in locked:
            cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            if error := int(cudart.cudaHostUnregister(buffer.data_ptr())):
                self._refused("unlocked", error)

    def _refused(self, what: str, error: int) -> None:
        _forget_error(self._device)
        self.problem = (
            f"the weights' pages in host memory could not be {what} (cudaError {error}): "
            "waking takes longer"
        )
        log.warning("%s", self.problem)


def storages_of(root: object, device: torch.device) -> list[torch.UntypedStorage]:
    found: dict[int, torch.UntypedStorage] = {}
    for tensor in tensors_of(root):
        if tensor.device == device:
            storage = tensor.untyped_storage()
            found.setdefault(storage._cdata, storage)
    return list(found.values())


def tensors_of(root: object) -> Iterator[torch.Tensor]:
    """Follows attributes, slots, items, and what functions and methods have bound."""
    seen: set[int] = set()
    waiting: list[object] = [root]
    kept: list[object] = []  # an id is another object's once its own has gone
    while waiting:
        here = waiting.pop()
        if id(here) in seen or isinstance(here, LEAVES):
            continue
        seen.add(id(here))
        kept.append(here)
        if isinstance(here, torch.Tensor):
            yield here
        else:
            waiting.extend(_parts(here))


LEAVES = (str, bytes, int, float, complex, type, type(None), torch.dtype, torch.device, type(torch))
"""The last is a module's."""


def _parts(here: object) -> Iterator[Any]:
    if isinstance(here, Mapping):
        yield from here.keys()
        yield from here.values()
        return
    if isinstance(here, (list, tuple, Set)):
        yield from here
    if isinstance(here, functools.partial):
        yield from (here.func, here.args, here.keywords)
    yield from getattr(here, "__dict__", {}).values()
    for kind in type(here).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in [names] if isinstance(names, str) else names:
            yield getattr(here, name, None)
    for cell in getattr(here, "__closure__", None) or ():
        yield cell.cell_contents
    yield getattr(here, "__self__", None)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _forget_error(device: torch.device) -> None:
    """cudart keeps the error of a call that it refused, and torch's next check of a launch raises
    it. torch has no call that forgets it, so a launch of no consequence takes it."""
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device=device)
