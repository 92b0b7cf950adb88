"""Whether fields that no dialect knows are refused, or left out and named. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_left_out: ContextVar[list[str] | None] = ContextVar("fields that are left out", default=None)


@contextmanager
def unknown_fields_ignored() -> Iterator[list[str]]:
    """Bodies read within the block ignore unknown fields and name them in the list, for operators
    who choose that. Known fields that are refused stay refused."""
    left_out: list[str] = []
    token = _left_out.set(left_out)
    try:
        yield left_out
    finally:
        _left_out.reset(token)


def is_left_out(path: str) -> bool:
    """Whether an unknown field is; then it has been named."""
    left_out = _left_out.get()
    if left_out is None:
        return False
    left_out.append(path)
    return True
