"""The one set-up of logging, for every process, by HELEXA_LOG_FORMAT and HELEXA_LOG_LEVEL."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Mapping
from types import TracebackType

from inference.logs.formatters import JsonFormatter, RecordFormatter, TextFormatter
from inference.logs.redaction import Redactor, secrets_of
from inference.settings.installation import LOG_FORMAT, LOG_LEVEL
from inference.settings.setting import LogLevel

FORMATTERS: dict[str, type[RecordFormatter]] = {"text": TextFormatter, "json": JsonFormatter}
TALKATIVE = ("celery", "kombu", "asyncio", "httpx", "httpcore", "urllib3", "filelock", "fsspec")
"""Libraries that would write of each request and each task; they warn and no more."""

logger = logging.getLogger(__name__)


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
    """Set up this process' logging to standard error as ``role``. Uncaught exceptions and Python's
    warnings are logged too. ``level`` applies where the environment sets none. Raises
    ``SettingError``."""
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
    """Servers and libraries bring handlers and formats of their own: theirs go through ours. A
    logger that was cut off without a handler stays so."""
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
