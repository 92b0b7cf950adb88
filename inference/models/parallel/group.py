"""The collectives of a step's ranks: sums and gathered logits, over torch.distributed.

    CPU    gloo, over loopback alone
    CUDA   NCCL

A collective that a rank does not come to is ended by dropping the group: the others' calls then
raise, and the engine ends.

Rank 0 chooses all ranks' kernels: each would time them for itself, choose differently where a card
is busy, and take another time for its part of every sum.

    rank 0   weight 0: packed ─▶ weight 1: torch's ─▶ …      by its own trials and times
                  │ store              │
    others   weight 0 ◀┘         weight 1 ◀┘                 in the same order, timing nothing
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import distributed
from torch._C._distributed_c10d import FileStore, Store

from inference.models.errors import RanksDisagreeError

LOOPBACK = "127.0.0.1"


class RankGroup(Protocol):
    @property
    def rank(self) -> int: ...

    @property
    def num_ranks(self) -> int: ...

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        """Returns the sum of all ranks' ``part``, which may be overwritten."""
        ...

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's ``part``, of one shape, by rank."""
        ...

    def synchronize(self) -> None:
        """Waits until the device has done this rank's collectives: NCCL only queues them, so a
        call returns also where another rank never comes."""
        ...


class TorchRankGroup:
    """A ``RankGroup`` over torch.distributed. Belongs to one thread, except for ``drop``."""

    def __init__(self, rank: int, num_ranks: int, device: torch.device) -> None:
        """Joins nothing yet."""
        self.rank = rank
        self.num_ranks = num_ranks
        self._device = device
        self._backend: Any = None

    def join(self, store: Store, timeout_s: float) -> None:
        """Waits for the other ranks, which meet by ``store``; it is not used afterwards.
        ``timeout_s``: of this and of each collective. Raises torch's exceptions and
        ``RanksDisagreeError``."""
        timeout = timedelta(seconds=timeout_s)
        store.set_timeout(timeout)
        if self._device.type == "cuda":
            options = distributed.ProcessGroupNCCL.Options()
            options._timeout = timeout
            self._backend = distributed.ProcessGroupNCCL(store, self.rank, self.num_ranks, options)
        else:
            self._backend = _loopback_gloo(store, self.rank, self.num_ranks, timeout)
        self._check_sums()

    def drop(self) -> None:
        """Leaves the group: calls of the others that wait for this rank raise. Any thread."""
        backend, self._backend = self._backend, None
        if backend is not None and self._device.type == "cuda":
            backend.abort()  # gloo's is gone with the last reference

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        part = part.contiguous()
        self._joined.allreduce([part]).wait()
        return part

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        part = part.contiguous()
        parts = [torch.empty_like(part) for _ in range(self.num_ranks)]
        self._joined.allgather([parts], [part]).wait()
        return parts

    def synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    @property
    def _joined(self) -> Any:
        """torch's stubs know no group that is made by itself."""
        if self._backend is None:
            raise distributed.DistError("this rank has left its process group")
        return self._backend

    def _check_sums(self) -> None:
        """Checks that all ranks are there, each once, and that sums are right."""
        own = torch.tensor([1.0, float(self.rank)], device=self._device)
        expected = [self.num_ranks, self.num_ranks * (self.num_ranks - 1) / 2]
        found = self.sum(own).tolist()
        if found != expected:
            raise RanksDisagreeError(f"the ranks' first sum is {found} and not {expected}")


def file_store(path: Path, num_ranks: int) -> Store:
    """Returns a store for processes of one host, which opens no port. ``path``: the same file for
    all, new."""
    return FileStore(str(path), num_ranks)


def _loopback_gloo(store: Store, rank: int, num_ranks: int, timeout: timedelta) -> Any:
    """gloo on loopback: by itself it would listen on whatever the host's name resolves to."""
    gloo: Any = distributed.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=LOOPBACK)]
    options._timeout = timeout
    return gloo(store, rank, num_ranks, options)


BUILD_TIMEOUT_S = 3600.0
"""Ranks read their files from one disk."""
FILE = "kernels"
"""The file's name, beside the file by which ranks meet."""


class SharedChoices:
    """A ``KernelChoice`` of ``LinearFactory``. Ranks ask in one order: that of their layers."""

    def __init__(
        self, meeting: Path, rank: int, num_ranks: int, timeout_s: float = BUILD_TIMEOUT_S
    ) -> None:
        """``timeout_s``: how long rank 0 may take from one weight to the next."""
        self._store = file_store(meeting.with_name(FILE), num_ranks)
        self._store.set_timeout(timedelta(seconds=timeout_s))
        self._is_first = rank == 0
        self._num_asked = 0

    def __call__(self, decide: Callable[[], bool]) -> bool:
        """Raises torch's ``RuntimeError`` where rank 0 decides nothing in time."""
        key = f"weight {self._num_asked}"
        self._num_asked += 1
        if not self._is_first:
            return bool(self._store.get(key) == b"1")
        chosen = decide()
        self._store.set(key, "1" if chosen else "0")
        return chosen
