"""One record as text or as JSON. What clients sent may be in it, and forges nothing.

2026-11-22 10:00:00,123 INFO gateway helexa.requests: one line, whatever is in it
    Traceback (most recent call last):       each further line is indented

``phases`` writes how long the phases of a sequence took.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from inference.logs.redaction import Redactor

if TYPE_CHECKING:
    from inference.protocol.engine import SequenceTiming

INDENT = "    "
OWN_ATTRIBUTES = frozenset(
    {*vars(logging.LogRecord("", 0, "", 0, "", None, None)), "message", "asctime", "taskName"}
)
"""The attributes that every record has; others came as ``extra``."""


def one_line(text: str) -> str:
    """``text`` with its control characters, line ends and invisible characters escaped as Python
    writes them."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def indented(text: str) -> str:
    """Several lines, none of which can be taken for a record."""
    return "\n".join(INDENT + one_line(line) for line in text.split("\n"))


def message_of(record: logging.LogRecord) -> str:
    """Returns the record's text. A record whose arguments do not fit its text is not lost."""
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - whatever an argument's __str__ raises
        return f"{record.msg} (with arguments that do not fit)"


class RecordFormatter(logging.Formatter):
    """``role``: which of helexa's processes this is."""

    def __init__(self, role: str, redact: Redactor) -> None:
        super().__init__()
        self._role = role
        self._redact = redact

    def trace_of(self, record: logging.LogRecord) -> str:
        """The exception's and the asked-for stack's lines; empty for most records."""
        parts = []
        if record.exc_info and record.exc_info[0] is not None:
            parts.append(self.formatException(record.exc_info))
        elif record.exc_text:
            parts.append(record.exc_text)
        if record.stack_info:
            parts.append(self.formatStack(record.stack_info))
        return "\n".join(parts)


class TextFormatter(RecordFormatter):
    def format(self, record: logging.LogRecord) -> str:
        head = f"{self.formatTime(record)} {record.levelname} {self._role} {record.name}:"
        lines = f"{one_line(head)} {one_line(message_of(record))}"
        if trace := self.trace_of(record):
            lines += f"\n{indented(trace)}"
        return self._redact(lines)


class JsonFormatter(RecordFormatter):
    """One object a line: ``ts``, ``level``, ``logger``, ``message``, ``role``, ``pid``, ``exc``
    where there is one, and what came as ``extra`` under its own names."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC)
        entry: dict[str, Any] = {
            "ts": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": message_of(record),
            "role": self._role,
            "pid": record.process,
        }
        if trace := self.trace_of(record):
            entry["exc"] = trace
        for name, value in vars(record).items():
            if name not in OWN_ATTRIBUTES:
                entry.setdefault(name, value)
        return json.dumps(self._redacted(entry), default=self._as_text)

    def _redacted(self, value: Any) -> Any:
        match value:
            case str():
                return self._redact(value)
            case dict():
                return {str(name): self._redacted(item) for name, item in value.items()}
            case list() | tuple() | set() | frozenset():
                return [self._redacted(item) for item in value]
        return value

    def _as_text(self, value: object) -> str:
        try:
            return self._redact(str(value))
        except Exception:  # noqa: BLE001 - a record is not lost for one field of it
            return f"<{type(value).__name__}>"


def phases(timing: SequenceTiming, num_output_tokens: int) -> str:
    """`` queue_ms=1 prefill_ms=20 prefill_tokens=400 prefill_tokens_per_s=20000 …``, and the memory
    of the device that the engine held at its end."""
    prefill_rate = _rate(timing.prefill_tokens, timing.prefill_ms)
    decode_rate = _rate(num_output_tokens - 1, timing.decode_ms)
    return (
        f" queue_ms={timing.queue_ms:.0f}"
        f" prefill_ms={timing.prefill_ms:.0f} prefill_tokens={timing.prefill_tokens}"
        f" prefill_tokens_per_s={prefill_rate:.0f}"
        f" decode_ms={timing.decode_ms:.0f} decode_tokens_per_s={decode_rate:.1f}"
        f" memory_bytes={timing.memory_bytes}"
    )


def _rate(num_tokens: int, ms: float) -> float:
    return 1000 * num_tokens / ms if ms > 0 else 0.0
