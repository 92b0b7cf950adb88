"""Memory that the system gives out page by page, as it comes into use."""

from __future__ import annotations

import contextlib
import math
import mmap

import torch


def lazy_zeros(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, *, huge_pages: bool = False
) -> torch.Tensor:
    """Like ``torch.zeros``, which writes every page of CPU memory at once: seconds for gigabytes.
    Here the kernel hands out zeroed pages as blocks come into use. A block lies in two places for
    each layer, so the first token's huge pages are a hundred megabytes, where they are allowed."""
    if device.type != "cpu" or 0 in shape:
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            pages.madvise(mmap.MADV_HUGEPAGE if huge_pages else mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8).view(dtype).view(shape)
