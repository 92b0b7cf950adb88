"""Blocks of keys and values as files: one of safetensors each, within a budget of bytes.

    name       SHA-256 of the model's fingerprint, the salt and every token up to the block's end
    metadata   the name again, and the SHA-256 of what the tensors hold

A file that does not match its name and its metadata is deleted. A disk that fails, is full or was
remounted read-only disables the cache, and ``problem`` names the reason.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path

import safetensors
import torch
from safetensors.torch import save

log = logging.getLogger(__name__)

SUFFIX = ".safetensors"
Tensors = Mapping[str, torch.Tensor]


def chain(root: bytes, blocks: Sequence[Sequence[int]]) -> list[str]:
    names = []
    parent = root
    for tokens in blocks:
        text = b",".join(b"%d" % token for token in tokens)
        parent = hashlib.sha256(parent + text).digest()
        names.append(parent.hex())
    return names


def root_of(fingerprint: str, salt: str) -> bytes:
    return hashlib.sha256(f"{fingerprint}\0{salt}".encode()).digest()


class PrefixFiles:
    """``holds`` is for any thread; one thread reads files, one writes them. No method raises
    ``OSError``."""

    def __init__(self, directory: Path, budget_bytes: int) -> None:
        self.problem = ""
        self._directory = directory
        self._budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()
        """The least recently used first."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._find()
            self._make_room()
        except OSError as error:
            self._switch_off(error)

    def holds(self, name: str) -> bool:
        return name in self._sizes

    def read(self, names: Sequence[str]) -> list[Tensors]:
        """Stops at the first that is missing or damaged."""
        found: list[Tensors] = []
        try:
            for name in names:
                tensors = self._read(name)
                if tensors is None:
                    break
                found.append(tensors)
            # A chain's tail is deleted before its head.
            for name in reversed(names[: len(found)]):
                self._touch(name)
        except OSError as error:
            self._switch_off(error)
        return found

    def write(self, name: str, tensors: Tensors) -> None:
        if self.problem:
            return
        try:
            if self.holds(name):
                self._touch(name)
                return
            data = save(dict(tensors), {"name": name, "sha256": _digest(tensors)})
            self._write(self._path(name), data)
            with self._lock:
                self._sizes[name] = len(data)
            self._make_room()
        except OSError as error:
            self._switch_off(error)

    def _write(self, path: Path, data: bytes) -> None:
        partial = path.with_suffix(".partial")
        try:
            partial.write_bytes(data)
            partial.rename(path)
        except OSError:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise

    def _switch_off(self, error: OSError) -> None:
        with self._lock:
            if self.problem:
                return
            why = error.strerror or str(error)
            self.problem = f"prefixes on disk are off until the model is loaded again: {why}"
            self._sizes.clear()
        log.warning("%s (%s)", self.problem, self._directory)

    def _read(self, name: str) -> Tensors | None:
        if not self.holds(name):
            return None
        try:
            with safetensors.safe_open(self._path(name), framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (safetensors.SafetensorError, FileNotFoundError) as error:
            log.warning("the prefix %s cannot be read and is dropped: %s", name, error)
            self._drop(name)
            return None
        if metadata.get("name") != name or metadata.get("sha256") != _digest(tensors):
            log.warning("the prefix %s is damaged and is dropped", name)
            self._drop(name)
            return None
        return tensors

    def _find(self) -> None:
        found = []
        for path in self._directory.iterdir():
            if path.suffix == SUFFIX:
                status = path.stat()
                found.append((status.st_mtime_ns, path.stem, status.st_size))
            elif path.suffix == ".partial":
                path.unlink(missing_ok=True)
        self._sizes.update((name, size) for _, name, size in sorted(found))

    def _touch(self, name: str) -> None:
        with self._lock:
            if name in self._sizes:
                self._sizes.move_to_end(name)
        try:
            os.utime(self._path(name))
        except FileNotFoundError:
            self._drop(name)

    def _make_room(self) -> None:
        with self._lock:
            total = sum(self._sizes.values())
            while total > self._budget_bytes and self._sizes:
                name, size = self._sizes.popitem(last=False)
                total -= size
                self._path(name).unlink(missing_ok=True)

    def _drop(self, name: str) -> None:
        with self._lock:
            self._sizes.pop(name, None)
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}{SUFFIX}"


def _digest(tensors: Tensors) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()
