"""The bench's exceptions, with messages for people.

BenchError          a file that cannot be imported, a sweep that cannot be started
├── TargetError     a target did not answer, or not as its API does; ``status``: the response's
└── BenchValueError a scenario, target or selection that there cannot be
"""

from __future__ import annotations

from metering.errors import MeteringError, MeteringValueError


class BenchError(MeteringError):
    pass


class TargetError(BenchError):
    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class BenchValueError(BenchError, MeteringValueError):
    pass
