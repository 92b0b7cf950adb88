"""NVIDIA's driver with two cards, as far as discovery reads it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml

from inference.neuron.host.discovery import Discovery

GIB = 1024**3


class FakeNvml:
    """Two cards on one driver; ``init_error`` is what nvmlInit raises."""

    NVMLError = pynvml.NVMLError
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    NVML_ERROR_NO_PERMISSION = pynvml.NVML_ERROR_NO_PERMISSION
    NVML_ERROR_DRIVER_NOT_LOADED = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    NVML_ERROR_LIBRARY_NOT_FOUND = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
    NVML_ERROR_NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED

    def __init__(self, init_error: int | None = None, memory_error: int | None = None) -> None:
        """``memory_error``: what the first card's memory raises."""
        self.init_error = init_error
        self.memory_error = memory_error
        self.is_lost = False

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's own names
        if self.init_error is not None:
            raise pynvml.NVMLError(self.init_error)

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"580.10"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:  # noqa: N802
        return 13_000

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:  # noqa: N802
        return (8, 6)

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return f"Card {handle}"

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return f"GPU-{handle}abc"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        if self.is_lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        if handle == 0 and self.memory_error is not None:
            raise pynvml.NVMLError(self.memory_error)
        return SimpleNamespace(total=24 * GIB, free=(20 + handle) * GIB)

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: int) -> int:  # noqa: N802
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    NVML_TEMPERATURE_GPU = pynvml.NVML_TEMPERATURE_GPU

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:  # noqa: N802
        if handle == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(gpu=80, memory=20)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802 - in milliwatts
        if handle == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return 220_500

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:  # noqa: N802
        if handle == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return 61


def discovered(nvml: FakeNvml, *, has_gpu: bool = True, **environment: str) -> Discovery:
    return Discovery.run(nvml, has_nvidia_hardware=has_gpu, environment=environment)
