"""NVIDIA's driver with two cards, as far as discovery reads it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml

from inference.neuron.host.discovery import Discovery

GIB = 1024**3
OF_DRIVER = {
    "nvmlSystemGetDriverVersion": b"580.10",
    "nvmlSystemGetCudaDriverVersion_v2": 13_000,
    "nvmlDeviceGetCount": 2,
}
OF_CARDS = {
    "nvmlDeviceGetCudaComputeCapability": ((8, 6), (8, 6)),
    "nvmlDeviceGetName": ("Card 0", "Card 1"),
    "nvmlDeviceGetUUID": ("GPU-0abc", "GPU-1abc"),
    # ``None``: a card does not report it.
    "nvmlDeviceGetMaxMigDeviceCount": (None, None),
    "nvmlDeviceGetUtilizationRates": (SimpleNamespace(gpu=80, memory=20), None),
    "nvmlDeviceGetPowerUsage": (220_500, None),  # in milliwatts
}


class FakeNvml:
    """Two cards on one driver; ``init_error`` is what nvmlInit raises."""

    def __init__(self, init_error: int | None = None, memory_error: int | None = None) -> None:
        """``memory_error``: what the first card's memory raises."""
        self.init_error = init_error
        self.memory_error = memory_error
        self.is_lost = False

    def __getattr__(self, name: str) -> Any:
        if name in OF_DRIVER:
            return lambda: OF_DRIVER[name]
        if name not in OF_CARDS:
            return getattr(pynvml, name)  # errors and constants

        def of_card(handle: int) -> Any:
            value = OF_CARDS[name][handle if handle < 2 else 0]  # of a part as of the first card
            if value is None:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return value

        return of_card

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's own names
        if self.init_error is not None:
            raise pynvml.NVMLError(self.init_error)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        error = pynvml.NVML_ERROR_GPU_IS_LOST if self.is_lost else self.memory_error
        if error is not None and (self.is_lost or handle == 0):
            raise pynvml.NVMLError(error)
        return SimpleNamespace(total=24 * GIB, free=(20 + handle) * GIB)

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:  # noqa: N802
        if handle == 1 or sensor != pynvml.NVML_TEMPERATURE_GPU:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return 61


def discovered(nvml: FakeNvml, *, has_gpu: bool = True, **environment: str) -> Discovery:
    return Discovery.run(nvml, has_nvidia_hardware=has_gpu, environment=environment)
