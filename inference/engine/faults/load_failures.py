"""What a load that raised is reported as, by whichever process of the engine loaded."""

from __future__ import annotations

import logging

from inference.engine.errors import DoesNotFitError
from inference.engine.faults.fault_classes import classify
from inference.engine.faults.kinds import OutOfMemoryFault, StepFault
from inference.loading.sources.disk import is_disk_full
from inference.models.errors import (
    MissingWeightsError,
    UnfitWeightsError,
    UnregisteredArchitectureError,
)
from inference.protocol.load_errors import LoadError
from inference.protocol.load_progress import (
    LoadFailure,
)

log = logging.getLogger(__name__)


def load_failure(error: BaseException, what: str) -> LoadFailure:
    """``what`` was loaded, for the log."""
    match error:
        case LoadError():
            return error.failure
        case DoesNotFitError():
            return LoadFailure(code="does_not_fit", message=str(error))
        case UnregisteredArchitectureError():
            return LoadFailure(code="unknown_architecture", message=str(error))
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
    """Whatever was asked for memory and got none: it was free when the load was looked at."""
    if issubclass(classify(error, "cpu"), OutOfMemoryFault):
        message = "the device ran out of memory while the model was loaded"
        return LoadFailure(code="does_not_fit", message=message)
    if is_disk_full(error):
        return LoadFailure(code="disk_full", message=f"the disk was full while loading: {error}")
    message = f"{type(error).__name__} while loading; the neuron's log has the details"
    return LoadFailure(code="engine_crashed", message=message)
