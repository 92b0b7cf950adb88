"""The device itself, without an engine: its best rates of copying and multiplying, measured beside
the subjects, so that their shares of it are of the same minutes."""

from __future__ import annotations

import torch

from inference.loading.devices import free_memory_bytes
from inference.models.cuda.card import device_ms

LIBRARIES = ()
"""All of them are imported above."""
CARD_COPIED_BYTES, CPU_COPIED_BYTES = 4 * 1024**3, 64 * 1024**2
CARD_MATMUL_SIDE, CPU_MATMUL_SIDE = 8192, 512
"""A card's sizes would take a CPU minutes."""


class DeviceLimits:
    """Answers questions of its own instead of a ``Subject``'s, which need no seed; keeps no memory
    between them."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._on_card = self._device.type == "cuda"

    def describe(self) -> str:
        words = f"torch {torch.__version__}"
        if not self._on_card:
            return f"{self._device}, {words}"
        return f"{torch.cuda.get_device_name(self._device)}, {words}, CUDA {torch.version.cuda}"

    def free_bytes(self) -> int:
        return free_memory_bytes(self._device)

    def copy_bytes_per_s(self, seed: int) -> float:
        size = CARD_COPIED_BYTES if self._on_card else CPU_COPIED_BYTES
        return self._released(copy_bytes_per_s(self._device, size))

    def matmul_flops_per_s(self, seed: int) -> float:
        side = CARD_MATMUL_SIDE if self._on_card else CPU_MATMUL_SIDE
        return self._released(matmul_flops_per_s(self._device, side))

    def close(self) -> None:
        return

    def _released(self, rate: float) -> float:
        """``rate``, after releasing the measurement's memory."""
        if self._on_card:
            torch.cuda.empty_cache()
        return rate


def copy_bytes_per_s(device: torch.device, num_bytes: int) -> float:
    """Bytes read and written by a copy of ``num_bytes`` within the device's memory."""
    source = torch.empty(num_bytes, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    return 2 * num_bytes / (device_ms(lambda: target.copy_(source), device) / 1e3)


def matmul_flops_per_s(device: torch.device, side: int) -> float:
    """The rate of a square product in bfloat16; a multiplication and an addition count as two."""
    shape = side, side
    left, right = (torch.randn(shape, dtype=torch.bfloat16, device=device) for _ in range(2))
    return float(2 * side**3 / (device_ms(lambda: left @ right, device) / 1e3))


def open_subject(device: str) -> DeviceLimits:
    return DeviceLimits(device)
