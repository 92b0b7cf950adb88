"""Logs of every process of helexa: one record a line, as text or as JSON, and no secret in it.
What clients sent may be in a record, and forges nothing.

    logging ─▶ formatter ─▶ redaction ─▶ standard error

    2026-11-22 10:00:00,123 INFO gateway helexa.requests: one line, whatever is in it
        Traceback (most recent call last):       each further line is indented

Standard library only: what runs before anything is installed logs by it too.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any

from inference.redaction import Redactor, secrets_of
from inference.settings.installation import LOG_FORMAT, LOG_LEVEL
from inference.settings.setting import LogLevel

if TYPE_CHECKING:
    from inference.protocol.engine import SequenceTiming

logger = logging.getLogger(__name__)

INDENT = "    "
MAX_THROTTLED_KEYS = 2000
TALKATIVE = ("celery", "kombu", "asyncio", "httpx", "httpcore", "urllib3", "filelock", "fsspec")
OWN_ATTRIBUTES = frozenset(
    {*vars(logging.LogRecord("", 0, "", 0, "", None, None)), "message", "asctime", "taskName"}
)


def one_line(text: str) -> str:
    """Escapes control characters, line ends and invisible characters as Python writes them."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def indented(text: str) -> str:
    """Indents each line, so that none can be taken for a record."""
    return "\n".join(INDENT + one_line(line) for line in text.split("\n"))


def message_of(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - whatever an argument's __str__ raises
        return f"{record.msg} (with arguments that do not fit)"


class RecordFormatter(logging.Formatter):
    def __init__(self, role: str, redact: Redactor) -> None:
        super().__init__()
        self._role = role
        self._redact = redact

    def trace_of(self, record: logging.LogRecord) -> str:
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


FORMATTERS: dict[str, type[RecordFormatter]] = {"text": TextFormatter, "json": JsonFormatter}


def is_json(environment: Mapping[str, str]) -> bool:
    """False also for a word that is refused, so that the refusal can be printed."""
    return environment.get(LOG_FORMAT.name, "").strip().lower() == "json"


def formatter_for(role: str, environment: Mapping[str, str]) -> RecordFormatter:
    """Raises ``SettingError``."""
    return FORMATTERS[LOG_FORMAT.read(environment)](role, Redactor(secrets_of(environment)))


def configure_logging(
    role: str,
    *,
    level: int = logging.INFO,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """``level`` applies where the environment sets none. Raises ``SettingError``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter_for(role, environment))
    if logging.lastResort is not None:  # for loggers that are cut off from the root
        logging.lastResort.setFormatter(handler.formatter)
    _silence_other_handlers()
    root = logging.getLogger()
    root.handlers[:] = [handler]
    _set_levels(level, LOG_LEVEL.read(environment))
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread


def _set_levels(default: int, wanted: LogLevel) -> None:
    names = logging.getLevelNamesMapping()
    level = default if wanted.default is None else names[wanted.default.upper()]
    logging.getLogger().setLevel(level)
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
    for name, word in wanted.by_logger:
        logging.getLogger(name).setLevel(names[word.upper()])


def _silence_other_handlers() -> None:
    for found in list(logging.root.manager.loggerDict.values()):
        if isinstance(found, logging.Logger) and found.handlers:
            found.handlers.clear()
            found.propagate = True


def _log_uncaught(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
        return
    logger.critical("nobody caught an error", exc_info=(kind, error, traceback))


def _log_uncaught_in_thread(arguments: threading.ExceptHookArgs) -> None:
    error = arguments.exc_value
    if error is None or isinstance(error, SystemExit):
        return
    name = arguments.thread.name if arguments.thread else "?"
    logger.critical(
        "nobody caught an error in thread %s",
        name,
        exc_info=(arguments.exc_type, error, arguments.exc_traceback),
    )


@dataclass(slots=True)
class _Interval:
    began_s: float
    messages: set[str] = field(default_factory=set)
    num_left_out: int = 0


class ThrottledLog:
    """Logs for each key at most ``max_messages`` different messages in an interval, each once.
    Belongs to one thread."""

    def __init__(
        self,
        logger: logging.Logger,
        level: int,
        *,
        interval_s: float = 60.0,
        max_messages: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._level = level
        self._interval_s = interval_s
        self._max_messages = max_messages
        self._clock = clock
        self._intervals: OrderedDict[str, _Interval] = OrderedDict()

    def log(self, key: str, message: str) -> None:
        now_s = self._clock()
        interval = self._intervals.get(key)
        more = ""
        if interval is None or now_s - interval.began_s >= self._interval_s:
            if interval is not None and interval.num_left_out:
                more = f" (and {interval.num_left_out} more like it)"
            interval = self._intervals[key] = _Interval(began_s=now_s)
        self._intervals.move_to_end(key)
        while len(self._intervals) > MAX_THROTTLED_KEYS:
            self._intervals.popitem(last=False)
        if message in interval.messages or len(interval.messages) >= self._max_messages:
            interval.num_left_out += 1
            return
        interval.messages.add(message)
        self._logger.log(self._level, "%s%s", message, more)

    def forget(self, key: str) -> None:
        self._intervals.pop(key, None)


def phases(timing: SequenceTiming, num_output_tokens: int) -> str:
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
