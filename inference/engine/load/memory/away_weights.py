"""A model's tensors moved from its device to the host's memory, and back to where they were.

    device storages ──take──▶ host buffers, page-locked on CUDA ──restore──▶ the same storages

A storage is emptied and filled again, so every tensor that looks at it keeps its shape and needs no
word. Nothing may use the model in between.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator, Mapping, Set
from typing import Any

import torch

log = logging.getLogger(__name__)

COPIED_TOGETHER_BYTES = 1 << 30
"""How much is copied back before the device is waited for."""


class AwayWeights:
    def __init__(self, model: object, device: torch.device) -> None:
        self._model = model
        self._device = device
        self._away: list[tuple[torch.UntypedStorage, torch.Tensor]] = []
        self._locked: list[torch.Tensor] = []
        """Those buffers whose pages are locked."""
        self.problem = ""
        """Why pages are not locked any more, in words; empty where nothing was refused."""

    @property
    def num_bytes(self) -> int:
        """The bytes that the weights take in the host's memory."""
        return sum(buffer.nbytes for _, buffer in self._away)

    def take(self) -> None:
        """Raises ``RuntimeError`` and ``MemoryError`` where the host has no memory."""
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
        """Raises ``RuntimeError`` where the device has no memory."""
        copied_bytes = 0
        for storage, buffer in self._away:
            storage.resize_(buffer.nbytes)
            _bytes_of(storage).copy_(buffer, non_blocking=True)
            copied_bytes += buffer.nbytes
            if copied_bytes >= COPIED_TOGETHER_BYTES:
                _wait_for(self._device)
                copied_bytes = 0
        _wait_for(self._device)
        self._unlock_pages()
        self._away.clear()

    def _lock_pages(self, buffer: torch.Tensor) -> None:
        """A card copies twice as fast from pages that stay where they are. Registered and not
        taken from torch's allocator of such memory, which rounds up to powers of two and gives none
        back. Where the driver refuses once (a container's limit on locked memory), the rest stays
        unlocked, and copying is only slower."""
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
    """The storages of all tensors on ``device`` that ``root`` reaches, each once."""
    found: dict[int, torch.UntypedStorage] = {}
    for tensor in tensors_of(root):
        if tensor.device == device:
            storage = tensor.untyped_storage()
            found.setdefault(storage._cdata, storage)
    return list(found.values())


def tensors_of(root: object) -> Iterator[torch.Tensor]:
    """Yields each tensor that ``root`` reaches by attributes, slots, items, and what functions and
    methods have bound."""
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


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
