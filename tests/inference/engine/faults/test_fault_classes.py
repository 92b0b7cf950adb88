"""Which fault an exception is, with exceptions as torch raises them where this machine can raise
them, and with the texts of those that need a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch

from inference.engine.errors import (
    DeviceFault,
    DoesNotFitError,
    HangFault,
    NumericalFault,
    OutOfMemoryFault,
    StepFault,
    StepInputFault,
)
from inference.engine.faults import classify, load_failure, recover
from inference.models.errors import UnfitWeightsError, UnlikeKernelsError
from tests.cases import each_case

dist: Any = torch.distributed


def raised(do: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as found:
        do()
    return found.value


REAL: list[tuple[Exception, type[StepFault]]] = [
    (raised(lambda: torch.empty(1 << 60, dtype=torch.uint8)), OutOfMemoryFault),
    (raised(lambda: bytearray(1 << 60)), OutOfMemoryFault),
    *(
        (raised(do), StepInputFault)
        for do in (
            lambda: torch.ones(2, 3) @ torch.ones(2, 3),
            lambda: torch.arange(3)[torch.tensor([7])],
            lambda: torch.embedding(torch.ones(3, 3), torch.tensor([9])),
            lambda: ctypes.CDLL(None).strlen(3.5),
        )
    ),
]


def cuda_error(text: str, number: int | None = None) -> Exception:
    """Returns an error like the ``torch.AcceleratorError`` that C++ raises."""
    error = torch.AcceleratorError(f"CUDA error: {text}\nCUDA kernel errors might be asynchronous")
    if number is not None:
        error.error_code = number  # type: ignore[attr-defined]
    return error


TEXTS: list[tuple[Exception, type[StepFault]]] = [
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), OutOfMemoryFault),
    (cuda_error("out of memory", 2), OutOfMemoryFault),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling create"), OutOfMemoryFault),
    (RuntimeError("Triton Error [CUDA]: out of memory"), OutOfMemoryFault),
    (cuda_error("invalid configuration argument", 9), StepInputFault),
    (cuda_error("invalid argument"), StepInputFault),
    (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling gemm"), StepInputFault),
    (cuda_error("an illegal memory access was encountered", 700), DeviceFault),
    (cuda_error("unspecified launch failure"), DeviceFault),
    (RuntimeError("CUDA error: misaligned address"), DeviceFault),
    (RuntimeError("CUDA driver error: device not ready"), DeviceFault),
    (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling gemm"), DeviceFault),
    (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), DeviceFault),
    (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), DeviceFault),
    (dist.DistBackendError("NCCL error: unhandled cuda error, NCCL version 2.27"), DeviceFault),
    (
        dist.DistBackendError(
            "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1) "
            "ran for 600009 milliseconds before timing out."
        ),
        HangFault,
    ),
    (NumericalFault("row 3"), NumericalFault),
    (RuntimeError("!block->expandable INTERNAL ASSERT FAILED at CUDACaching.cpp"), DeviceFault),
    (
        RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc] Timed out waiting 1000ms"),
        HangFault,
    ),
]


@each_case(("error", "fault"), [*REAL, *TEXTS], ids=lambda value: str(value)[:40])
def test_what_was_raised(error: Exception, fault: type[StepFault]) -> None:
    assert classify(error, "cuda") is fault
    if "INTERNAL ASSERT" in str(error):  # torch's own books: worse on a device
        fault = StepInputFault
    if (error, fault) not in TEXTS:
        assert classify(error, "cpu") is fault


def test_after_recovering_the_attempt_holds_nothing() -> None:
    freed: list[int] = []

    class Large:
        __del__ = lambda self: freed.append(1)  # noqa: E731

    def attempt() -> None:
        held = Large()
        raise MemoryError(f"beside {held}")

    try:
        attempt()
    except MemoryError as error:
        fault = recover(error, "cpu")
        assert freed, "the traceback still holds what the attempt had"
        assert isinstance(fault, OutOfMemoryFault)


def test_a_load_that_raised_is_reported_by_its_reason() -> None:
    for error, code in (
        (DoesNotFitError("too large"), "does_not_fit"),
        (MemoryError("too large"), "does_not_fit"),
        (UnlikeKernelsError("rank 1 lacks it"), "bad_source"),
        (UnfitWeightsError("of another shape"), "bad_file"),
        (DeviceFault("lost"), "device_fault"),
        (RuntimeError("a bug"), "engine_crashed"),
    ):
        assert load_failure(error, "a model").code == code
