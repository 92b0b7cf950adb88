"""Which fault an exception of the tensor half is.

torch distinguishes little by type, so the texts decide: those of torch, CUDA's runtime and driver,
cuBLAS, NCCL, gloo and Triton. With an unknown text the device counts as sound, because a wrong
guess is cheap: the step is tried again in parts, and an unsound device raises again.
"""

from __future__ import annotations

import re
import traceback
from errno import ENOMEM

import torch

from inference.engine.faults.kinds import (
    DeviceFault,
    HangFault,
    OutOfMemoryFault,
    StepFault,
    StepInputFault,
)

CUDA_INVALID_VALUE, CUDA_OUT_OF_MEMORY, CUDA_INVALID_CONFIGURATION = 1, 2, 9
"""cudaError_t: the errors of one call. Any other one stays with the process ("sticky"), or means
that the device is lost."""

OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)
REFUSED_CALL = re.compile(
    r"invalid argument|invalid configuration argument"
    r"|CUBLAS_STATUS_(INVALID_VALUE|NOT_SUPPORTED)|CUDNN_STATUS_(BAD_PARAM|NOT_SUPPORTED)",
)
HANG = re.compile(r"timed out|collective operation timeout|ncclRemoteError", re.IGNORECASE)
COLLECTIVE = re.compile(r"NCCL|ProcessGroup|gloo|collective", re.IGNORECASE)
DEVICE = re.compile(
    r"CUDA (driver )?error|HIP error|Triton Error|device-side assert|CUBLAS_STATUS_|CUDNN_STATUS_"
    r"|cuda(Error|GetDevice|Stream|Event)|uncorrectable ECC|NVML_SUCCESS"
)


def classify(error: BaseException, device_type: str) -> type[StepFault]:
    """``device_type`` is torch's: ``cpu`` or ``cuda``."""
    text = str(error)
    if isinstance(error, StepFault):
        return type(error)
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return OutOfMemoryFault
    if isinstance(error, OSError) and error.errno == ENOMEM:  # pages that the system does not give
        return OutOfMemoryFault
    if _is_collective(error, text):
        return HangFault if HANG.search(text) else DeviceFault
    if isinstance(error, torch.AcceleratorError) or DEVICE.search(text):
        return _of_device(error, text)
    if isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(text):
        return OutOfMemoryFault
    if device_type != "cpu" and "INTERNAL ASSERT FAILED" in text:
        # torch's own books do not agree, and they are what the device's memory is shared out by.
        return DeviceFault
    return StepInputFault


def recover(error: Exception, device_type: str) -> StepFault:
    """The fault that ``error`` is; after it, what the failed attempt held is free again."""
    fault = classify(error, device_type)(str(error))
    # The frames of the attempt hold its tensors for as long as the traceback lives.
    traceback.clear_frames(error.__traceback__)
    if isinstance(fault, OutOfMemoryFault) and device_type == "cuda":
        torch.cuda.empty_cache()
    return fault


def _of_device(error: BaseException, text: str) -> type[StepFault]:
    number = getattr(error, "error_code", None)
    if number == CUDA_OUT_OF_MEMORY or OUT_OF_MEMORY.search(text):
        return OutOfMemoryFault
    if number in (CUDA_INVALID_VALUE, CUDA_INVALID_CONFIGURATION) or REFUSED_CALL.search(text):
        return StepInputFault
    return DeviceFault


def _is_collective(error: BaseException, text: str) -> bool:
    if torch.distributed.is_available() and isinstance(error, torch.distributed.DistError):
        return True
    return isinstance(error, RuntimeError) and bool(COLLECTIVE.search(text) or HANG.search(text))
