"""No engine but the device itself: what it copies and multiplies at best, measured beside the
others, so that their shares of it are of the same minutes."""

from __future__ import annotations

LIBRARIES = ("torch",)
CPU_COPIED_BYTES = 64 * 1024**2
CPU_MATMUL_SIDE = 512
"""A card's sizes would take a CPU minutes."""


class DeviceLimits:
    """Answers questions of its own instead of a ``Subject``'s; holds no memory between them."""

    def __init__(self, device: str) -> None:
        import torch

        self._device = torch.device(device)
        self._on_card = self._device.type == "cuda"

    def describe(self) -> str:
        import torch

        words = f"torch {torch.__version__}"
        if not self._on_card:
            return f"{self._device}, {words}"
        return f"{torch.cuda.get_device_name(self._device)}, {words}, CUDA {torch.version.cuda}"

    def free_bytes(self) -> int:
        from inference.loading.devices import free_memory_bytes

        return free_memory_bytes(self._device)

    def copy_bytes_per_s(self) -> float:
        from benchmarks.cuda.limits import COPIED_BYTES, copy_bytes_per_s

        size = COPIED_BYTES if self._on_card else CPU_COPIED_BYTES
        return self._released(copy_bytes_per_s(self._device, size))

    def matmul_flops_per_s(self) -> float:
        from benchmarks.cuda.limits import MATMUL_SIDE, matmul_flops_per_s

        side = MATMUL_SIDE if self._on_card else CPU_MATMUL_SIDE
        return self._released(matmul_flops_per_s(self._device, side))

    def close(self) -> None:
        return

    def _released(self, rate: float) -> float:
        """``rate``, once the memory that measuring it took is the others' again."""
        import torch

        if self._on_card:
            torch.cuda.empty_cache()
        return rate


def open_subject(device: str) -> DeviceLimits:
    return DeviceLimits(device)
