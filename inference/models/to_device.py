"""Small things to a device and back, so that the host waits for the device once a step: when it
reads what was sampled."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

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
    arrays: Ordered[npt.NDArray[np.signedinteger[Any]]], device: torch.device
) -> list[torch.Tensor]:
    """Arrays of one dtype as int64 tensors, all in one copy."""
    if device.type != "cuda":
        return [torch.from_numpy(array.astype(np.int64)).to(device) for array in arrays]
    joined = torch.from_numpy(np.concatenate([array.ravel() for array in arrays]))
    flat = on_device(joined, joined.dtype, device).long()
    parts = torch.split(flat, [array.size for array in arrays])
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]


class HostCopy:
    """Whole numbers and booleans on their way to the host, each tensor flat. The copy is queued
    when this is made, so that what is launched later is not waited for."""

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
