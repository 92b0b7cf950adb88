"""Which fault an exception of the tensor half is, and what a load that raised is reported as.

torch distinguishes little by type, so the texts decide. With an unknown text the device counts as
sound: the step is tried again in parts, and an unsound device raises again.

``isolate_faults`` finds the rows that make a step raise, by bisection:

    decodes a b c d, chunk e ─raises─▶ a b c d ─runs
                                       chunk e ─raises─▶ first half of e ─runs: the rest is next
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from errno import ENOMEM
from typing import Generic, TypeVar

import torch

from inference.engine.errors import (
    DeviceFault,
    DoesNotFitError,
    HangFault,
    OutOfMemoryFault,
    StepFault,
    StepInputFault,
)
from inference.engine.step import SMALLEST_CHUNK, PrefillChunk, Schedule
from inference.loading.sources.disk import is_disk_full
from inference.models.errors import (
    MissingWeightsError,
    UnfitWeightsError,
    UnlikeKernelsError,
    UnregisteredArchitectureError,
)
from inference.protocol.load_errors import LoadError
from inference.protocol.load_report import LoadFailure
from inference.supervised_threads import contained

log = logging.getLogger(__name__)

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
        # torch's state is inconsistent, and its allocator shares out the device's memory.
        return DeviceFault
    return StepInputFault


def is_out_of_memory(error: BaseException, device_type: str) -> bool:
    return issubclass(classify(error, device_type), OutOfMemoryFault)


def recover(error: Exception, device_type: str) -> StepFault:
    """Frees what the failed attempt held."""
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


def load_failure(error: BaseException, what: str) -> LoadFailure:
    match error:
        case LoadError():
            return error.failure
        case DoesNotFitError():
            return LoadFailure(code="does_not_fit", message=str(error))
        case UnregisteredArchitectureError():
            return LoadFailure(code="unknown_architecture", message=str(error))
        case UnlikeKernelsError():
            return LoadFailure(code="bad_source", message=str(error))
        case MissingWeightsError() | UnfitWeightsError():
            return LoadFailure(code="bad_file", message=str(error))
        case StepFault():
            log.error("the first steps of %s failed", what, exc_info=error)
            message = (
                "the model's first steps failed on its device; the neuron's log has the details"
            )
            return LoadFailure(code=error.code, message=message)
    log.error("loading %s failed", what, exc_info=error)
    return _unforeseen(error)


def _unforeseen(error: BaseException) -> LoadFailure:
    if is_out_of_memory(error, "cpu"):
        message = "the device ran out of memory while the model was loaded"
        return LoadFailure(code="does_not_fit", message=message)
    if is_disk_full(error):
        return LoadFailure(code="disk_full", message=f"the disk was full while loading: {error}")
    message = f"{type(error).__name__} while loading; the neuron's log has the details"
    return LoadFailure(code="engine_crashed", message=message)


Part = TypeVar("Part")
Result = TypeVar("Result")


@dataclass(slots=True)
class Outcome(Generic[Part, Result]):
    done: list[tuple[Part, Result]] = field(default_factory=list)
    failed: list[tuple[Part, StepFault]] = field(default_factory=list)
    faults: list[StepFault] = field(default_factory=list)


def isolate_faults(
    whole: Part,
    run: Callable[[Part], Result],
    recover: Callable[[Exception], StepFault],
    divide: Callable[[Part, StepFault], list[Part]],
) -> Outcome[Part, Result]:
    """``divide``: no parts where one is to fail. Raises ``StepFault`` of an unsound device."""
    outcome: Outcome[Part, Result] = Outcome()
    open_parts = [whole]
    while open_parts:
        part = open_parts.pop(0)
        try:
            result = contained(run, part)
        except Exception as error:  # any of the device's; recover classifies it
            fault = recover(error)
            is_first = not outcome.faults
            log.error("a step raised (%s)", type(fault).__name__, exc_info=is_first and error)
            if not fault.is_device_sound:
                raise fault from error
        else:
            outcome.done.append((part, result))
            continue
        outcome.faults.append(fault)
        if smaller := divide(part, fault):
            open_parts[:0] = smaller
        else:
            outcome.failed.append((part, fault))
    return outcome


def divide_schedule(schedule: Schedule, fault: StepFault) -> list[Schedule]:
    """Drafts are left out, which changes no answer. The next steps schedule the rest of a chunk
    that is made shorter."""
    if schedule.has_ended_rows:
        return [schedule.without_ended_rows()]
    if schedule.has_lost_rows:
        return [replace(schedule, has_lost_rows=False)]
    if schedule.drafts:
        return [Schedule(decodes=schedule.decodes)]
    decodes, prefills = schedule.decodes, schedule.prefills
    if decodes and prefills:
        return [Schedule(decodes=decodes), Schedule(prefills=prefills)]
    if len(decodes) > 1:
        return [Schedule(decodes=half) for half in halves(decodes)]
    if len(prefills) > 1:
        return [Schedule(prefills=half) for half in halves(prefills)]
    if prefills and isinstance(fault, OutOfMemoryFault):
        (chunk,) = prefills
        num_tokens = chunk.end - chunk.start
        if num_tokens > SMALLEST_CHUNK:
            end = chunk.start + max(num_tokens // 2, SMALLEST_CHUNK)
            shorter = PrefillChunk(chunk.sequence, chunk.start, end, is_last=False)
            return [Schedule(prefills=[shorter])]
    return []


Item = TypeVar("Item")


def halves(items: list[Item]) -> list[list[Item]]:
    middle = len(items) // 2
    return [items[:middle], items[middle:]]


SUSPICIOUS_STEPS = 8
"""Each ends every sequence that it samples: so many requests fail and none succeeds between."""


class NumericalWatch:
    def __init__(self) -> None:
        self._num_steps = 0

    def record(self, *, num_rows: int, num_failed: int) -> None:
        """Raises ``DeviceFault`` when no row has been a number for too long."""
        if num_rows == 0:
            return
        self._num_steps = self._num_steps + 1 if num_failed == num_rows else 0
        if self._num_steps >= SUSPICIOUS_STEPS:
            raise DeviceFault(f"no row was a number in {self._num_steps} steps in a row")
