"""Small tensors to a device and back, so that the host waits for the device once a step: when it
reads the sampled tokens."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Ints = npt.NDArray[np.int32]
ALIGNED_VALUES = 4
"""The number of int32 to which arrays are padded: 16 bytes, to which Triton's kernels are
specialised."""
Values = Ordered[int] | Ordered[float] | npt.NDArray[np.number[Any]] | torch.Tensor


def on_device(values: Values, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A copy that is there for whatever is launched next. From pinned memory, for the driver waits
    for all earlier work before it copies from any other; torch keeps that memory until the copy is
    done."""
    tensor = torch.as_tensor(values, dtype=dtype)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def all_on_device(
    device: torch.device, *, indices: Ordered[Ints] = (), tables: Ordered[Ints] = ()
) -> list[torch.Tensor]:
    """``indices`` as int64 tensors, which torch's operators want, then ``tables`` as int32, which
    kernels read: all in one copy."""
    if device.type != "cuda":
        wide = [torch.from_numpy(array.astype(np.int64)).to(device) for array in indices]
        return wide + [torch.from_numpy(np.array(array)).to(device) for array in tables]
    arrays = [*indices, *tables]
    parts = aligned(arrays)
    flat = on_device(torch.from_numpy(np.concatenate(parts)), torch.int32, device)
    num_wide = sum(map(len, parts[: len(indices)]))
    sizes = list(map(len, parts))
    found = [
        *torch.split(flat[:num_wide].long(), sizes[: len(indices)]),
        *torch.split(flat[num_wide:], sizes[len(indices) :]),
    ]
    return [part[: array.size].view(array.shape) for part, array in zip(found, arrays, strict=True)]


def aligned(arrays: Ordered[Ints]) -> list[Ints]:
    """Flat, each filled up with zeros to a multiple of 16 bytes: so behind one another all of them
    are aligned alike, whatever their lengths, and Triton compiles one kernel for all steps."""
    return [np.pad(array.ravel(), (0, -array.size % ALIGNED_VALUES)) for array in arrays]


class HostCopy:
    """Integers and booleans on their way to the host, each tensor flat. The copy is queued at
    construction, so that reading it does not wait for later launches."""

    def __init__(self, tensors: Ordered[torch.Tensor]) -> None:
        self._tensors = tensors
        self._copy: torch.Tensor | None = None
        if tensors and tensors[0].device.type == "cuda":
            flat = torch.cat([tensor.flatten().long() for tensor in tensors])
            self._copy = torch.empty(flat.shape, dtype=torch.int64, pin_memory=True)
            self._copy.copy_(flat, non_blocking=True)
            self._is_there: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._is_there.record()

    def values(self) -> list[list[int]]:
        """Waits, once for all of them."""
        if self._copy is None:
            return [tensor.flatten().tolist() for tensor in self._tensors]
        self._is_there.synchronize()
        flat: list[int] = self._copy.tolist()
        found, start = [], 0
        for tensor in self._tensors:
            found.append(flat[start : start + tensor.numel()])
            start += tensor.numel()
        return found


def read_back(tensors: Ordered[torch.Tensor]) -> list[list[int]]:
    return HostCopy(tensors).values()


def column(values: list[float], device: torch.device) -> torch.Tensor:
    """(num_values, 1) float32."""
    return on_device(values, torch.float32, device).unsqueeze(1)


def rows_of(matrix: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """A copy of them."""
    return matrix.index_select(0, on_device(rows, torch.int64, matrix.device))
