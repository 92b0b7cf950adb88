"""What a device can do at best: bytes copied and products computed in a second."""

from __future__ import annotations

import torch

from inference.models.cuda.timing import CARD, device_ms

COPIED_BYTES = 4 * 1024**3
MATMUL_SIDE = 8192


def copy_bytes_per_s(device: torch.device = CARD, num_bytes: int = COPIED_BYTES) -> float:
    """Bytes read and written by a copy of ``num_bytes`` within the device's memory."""
    source = torch.empty(num_bytes, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    return 2 * num_bytes / (device_ms(lambda: target.copy_(source), device) / 1e3)


def matmul_flops_per_s(device: torch.device = CARD, side: int = MATMUL_SIDE) -> float:
    """The rate of a square product in bfloat16; a multiplication and an addition count as two."""
    shape = side, side
    left, right = (torch.randn(shape, dtype=torch.bfloat16, device=device) for _ in range(2))
    return float(2 * side**3 / (device_ms(lambda: left @ right, device) / 1e3))
