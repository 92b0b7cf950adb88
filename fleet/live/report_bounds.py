"""Whether the values of a report can be stored and counted with: bounds by a field's name. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from inference.logs.formatters import one_line

Report = TypeVar("Report", bound=msgspec.Struct)

MAX_TEXT_LENGTH = 4096
TEXT_LENGTHS = {
    "name": 255,
    "epoch": 64,
    "version": 64,
    "hostname": 255,
    "os": 255,
    "compute_capability": 16,
    "driver": 64,
    "model": 100,
    "job_id": 64,
    "code": 64,
}
MAX_INTEGER = 2**63 - 1
MAX_CONTEXT_TOKENS = 2**24
"""Longer than any context. Where no cap applies, it bounds what a neuron may bill for a request."""
INTEGERS = {
    "index": 2**15 - 1,
    **dict.fromkeys(("context_tokens", "max_output_tokens"), MAX_CONTEXT_TOKENS),
    **dict.fromkeys(
        (
            "num_cores",
            "num_restarts",
            "in_flight",
            "queue_depth",
            "kv_blocks_used",
            "kv_blocks_total",
        ),
        2**31 - 1,
    ),
}
NEVER_NEGATIVE = INTEGERS.keys() | {
    "total_memory_bytes",
    "free_memory_bytes",
    "installed_memory_bytes",
    "num_drafted_tokens",
    "num_accepted_drafts",
    "done",
    "total",
}
DIVISORS = {"patch_px", "merge", "max_pixels"}
"""Gateways divide by them."""
MAX_UNIX_S = 2.0**36
"""The year 4147, which every database has."""


def value_problem(report: msgspec.Struct) -> str | None:
    """The first value that is out of bounds, in words."""
    for name, value in _values(report):
        if problem := _problem(name, value):
            return f"{name}: {problem}"
    return None


def printable(report: Report) -> Report:
    """The report with its control and invisible characters escaped, and spaces for line ends: its
    texts reach terminals, where raw ones move the cursor, forge lines or reorder text."""
    if all(text.isprintable() for _, text in _values(report) if isinstance(text, str)):
        return report
    return msgspec.convert(_printable(msgspec.to_builtins(report)), type(report))


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return one_line(value.replace("\n", " "))
    if isinstance(value, dict):
        return {_printable(key): _printable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(one) for one in value]
    return value


def _values(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            yield from _values(getattr(value, field), field)
    elif isinstance(value, dict):
        for key, one in value.items():
            yield f"a name in {name}", key
            yield from _values(one, name)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _values(one, name)
    elif isinstance(value, str | int | float):
        yield name, value


def _problem(name: str, value: str | int | float) -> str | None:
    if isinstance(value, str):
        bound = TEXT_LENGTHS.get(name, MAX_TEXT_LENGTH)
        if len(value) > bound:
            return f"{len(value)} letters are over the bound of {bound}"
        return "a NUL is in it" if "\0" in value else None
    if isinstance(value, float):
        if not math.isfinite(value):
            return f"{value} is no number"
        is_moment = name.endswith("_unix_s")
        return f"{value} is no time" if is_moment and not 0 <= value <= MAX_UNIX_S else None
    bound = INTEGERS.get(name, MAX_INTEGER)
    least = 1 if name in DIVISORS else 0 if name in NEVER_NEGATIVE else -MAX_INTEGER
    if not least <= value <= bound:
        return f"{value:.3e} is out of bounds" if abs(value) < 2**1000 else "it is out of bounds"
    return None
