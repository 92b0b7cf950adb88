"""Everything the bench can refuse.

    BenchError
    ├── TargetUnreachableError   nobody answers at the endpoint, or not in its API's words
    ├── SampleFailedError        one measurement came to nothing; ``status`` where there was one
    ├── BenchFileError           a file that is to be imported says nothing we understand
    └── BenchValueError          a scenario, target or selection that there cannot be

Messages are written for people. Imports nothing.
"""

from __future__ import annotations


class BenchError(Exception):
    """``str`` of it may be shown to whoever asked."""


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


class BenchValueError(BenchError):
    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
