"""One refusal for whatever a malformed file makes its readers stumble over.

Families read dozens of keys, each in its own way. What they check by name is refused by name; any
other value of a wrong kind ends here instead of as a raw error of Python's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from inference.protocol.load_errors import BadFileError

MALFORMED = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


@contextmanager
def refuses_malformed(what: str) -> Iterator[None]:
    """``what``: the file that is read inside. Raises ``BadFileError``."""
    try:
        yield
    except MALFORMED as error:
        reason = f"{type(error).__name__}: {error}".rstrip(": ")
        raise BadFileError(f"{what} holds a value that cannot be read: {reason}") from error
