"""Small things to a device and back, so that the host waits for the device once a step: when it
reads what was sampled."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Values = Ordered[int] | Ordered[float] | npt.NDArray[np.number[Any]]


def on_device(values: Values, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A copy that is there for whatever is launched next. From pinned memory, for the driver waits
    for all earlier work before it copies from any other; torch keeps that memory until the copy is
    done."""
    tensor = torch.as_tensor(values, dtype=dtype)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def all_on_device(
    arrays: Ordered[npt.NDArray[np.int64]], device: torch.device
) -> list[torch.Tensor]:
    """The same arrays as tensors, int64, all in one copy."""
    if device.type != "cuda":
        return [torch.from_numpy(array).to(device) for array in arrays]
    flat = on_device(np.concatenate([array.ravel() for array in arrays]), torch.int64, device)
    parts = torch.split(flat, [array.size for array in arrays])
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]


def read_back(tensors: Ordered[torch.Tensor]) -> list[list[int]]:
    """Whole numbers and booleans, each tensor flat, waiting once for all of them."""
    if not tensors or tensors[0].device.type != "cuda":
        return [tensor.flatten().tolist() for tensor in tensors]
    flat: list[int] = torch.cat([tensor.flatten().long() for tensor in tensors]).tolist()
    found, start = [], 0
    for tensor in tensors:
        found.append(flat[start : start + tensor.numel()])
        start += tensor.numel()
    return found


def column(values: list[float], device: torch.device) -> torch.Tensor:
    """(num_values, 1) float32."""
    return on_device(values, torch.float32, device).unsqueeze(1)


def rows_of(matrix: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """A copy of them."""
    return matrix.index_select(0, on_device(rows, torch.int64, matrix.device))
