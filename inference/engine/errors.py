"""The engine's exceptions, and how its process ends.

    EngineError
    ├── IntegrityError        our own accounting contradicts itself: a bug
    ├── AdapterError          an adapter cannot be loaded
    ├── GrammarError          a grammar does not compile, or the tokenizer allows none
    ├── DoesNotFitError       not even a short context fits the memory measured
    ├── WarmupError           a warm-up sequence failed; the message has its code
    └── StepFault             of a step
        ├── the device is sound: the row at fault fails, everything else continues
        │   ├── NumericalFault      logits that are not numbers
        │   ├── OutOfMemoryFault    not even the row alone fits
        │   ├── InvalidImageFault   an image of its prompt cannot be read
        │   └── StepInputFault      the row alone raises: shapes, indices, an operator that refuses
        └── it is not: everything in flight fails once, the process ends and is started again
            ├── DeviceFault         the driver reported an error, and every later call would
            └── HangFault           a step or a collective that does not come back
    ChannelError
    ├── BadRowsError          rows that no stage of this model sends: out of step
    └── UnexpectedFrameError  a frame that its sender may not send, or not now

Errors of one sequence are events (``SequenceFailed``) instead. ``faults`` classifies exceptions as
faults of a step. Imports no torch.
"""
# ruff: noqa: N818 - a fault is not always raised, so the names are those of the documentation.

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar

from inference.channel import ChannelError


class EngineError(Exception): ...


class IntegrityError(EngineError): ...


class BadRowsError(ChannelError): ...


class UnexpectedFrameError(ChannelError): ...


class AdapterError(EngineError):
    """The message is written for the client."""


class GrammarError(EngineError):
    """The message is written for the client."""


class DoesNotFitError(EngineError): ...


class WarmupError(EngineError): ...


class EngineExit(IntEnum):
    """1 and 2 are also what an interpreter that never got to our code exits with."""

    OK = 0
    FAILED = 1
    ORPHANED = 2
    DEVICE_FAULT = 70
    HUNG = 71


_NAMES = {
    EngineExit.FAILED: "failed",
    EngineExit.ORPHANED: "ended by its neuron",
    EngineExit.DEVICE_FAULT: "device fault",
    EngineExit.HUNG: "hung",
}


def describe_exit(code: int) -> str:
    name = _NAMES.get(EngineExit(code)) if code in set(EngineExit) else None
    return f"exited with code {code}" + (f" ({name})" if name else "")


class StepFault(EngineError):
    """Clients receive ``code`` and ``client_message``; the exception's own text is for the log."""

    code: ClassVar[str]
    client_message: ClassVar[str]
    is_device_sound: ClassVar[bool] = True
    exit_code: ClassVar[EngineExit] = EngineExit.FAILED


class NumericalFault(StepFault):
    code = "numerical_error"
    client_message = "the model's output was not a number"


class OutOfMemoryFault(StepFault):
    code = "out_of_memory"
    client_message = "the device ran out of memory"


class InvalidImageFault(StepFault):
    code = "invalid_image"
    client_message = "an image of this request cannot be read, or is not what it was counted as"


class StepInputFault(StepFault):
    code = "engine_error"
    client_message = "the engine could not compute this request"


class DeviceFault(StepFault):
    code = "device_fault"
    client_message = "the device failed while it worked on this request"
    is_device_sound = False
    exit_code = EngineExit.DEVICE_FAULT


class HangFault(StepFault):
    code = "engine_hung"
    client_message = "the engine did not come back while it worked on this request"
    is_device_sound = False
    exit_code = EngineExit.HUNG
