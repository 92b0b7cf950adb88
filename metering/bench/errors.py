"""The bench's exceptions.

    BenchError
    ├── TargetUnreachableError   the endpoint does not answer, or not in its API's format
    ├── SampleFailedError        one measurement came to nothing; ``status`` where there was one
    ├── BenchFileError           a file to import has no content that we understand
    ├── BenchValueError          a scenario, target or selection that there cannot be
    └── JobOpenError             another job of the page has not ended

Messages are written for people.
"""

from __future__ import annotations

from metering.errors import MeteringError, MeteringValueError


class BenchError(MeteringError):
    pass


class TargetUnreachableError(BenchError):
    pass


class SampleFailedError(BenchError):
    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status

    @property
    def is_rejection(self) -> bool:
        """The server had no room: a result of a sweep over concurrency, and no fault."""
        return self.status in (429, 503)


class BenchFileError(BenchError):
    pass


class BenchValueError(BenchError, MeteringValueError):
    pass


class JobOpenError(BenchError):
    pass
