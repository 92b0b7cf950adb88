"""The agent's log: to a file or to standard error, as standard output belongs to the protocol.

HELEXA_ACP_LOG_FILE   the file
HELEXA_LOG_LEVEL      info,helexa_acp.wire=debug: a level, and levels of loggers by their name
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping

from helexa_acp.errors import ConfigError

LEVELS = ("debug", "info", "warning", "error")
LOGGER_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,199}")
TALKATIVE = ("asyncio", "httpx2", "httpcore2", "openai", "anthropic")
"""Libraries that log every request, with its address: they warn, unless they are named."""


def set_up_logging(environ: Mapping[str, str]) -> None:
    """Raises ``ConfigError`` for a level that is none."""
    levels = read_levels(environ.get("HELEXA_LOG_LEVEL", ""))
    path = environ.get("HELEXA_ACP_LOG_FILE")
    failure: OSError | None = None
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if path:
        try:
            handler = logging.FileHandler(path)
        except OSError as error:
            failure = error
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    level = levels.pop("", logging.INFO)
    logging.basicConfig(level=level, handlers=[handler])
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
    for name, its_level in levels.items():
        logging.getLogger(name).setLevel(its_level)
    if failure is not None:
        log = logging.getLogger(__name__)
        log.warning("HELEXA_ACP_LOG_FILE %s cannot be written, logging here: %s", path, failure)


def read_levels(word: str) -> dict[str, int]:
    """The level of each logger that is named; of all others by the empty name, where there is one.
    Accepts what the server's processes accept. Raises ``ConfigError``."""
    found: dict[str, int] = {}
    for part in word.split(",") if word.strip() else ():
        name, equals, written = (piece.strip() for piece in part.rpartition("="))
        level = written.lower()
        is_known = level in LEVELS and (not equals or LOGGER_NAME.fullmatch(name))
        number = logging.getLevelNamesMapping()[level.upper()] if is_known else 0
        is_second = name in found and (not equals or found[name] != number)
        if not is_known or is_second:
            raise ConfigError(
                f"HELEXA_LOG_LEVEL={word!r} is not one of {', '.join(LEVELS)}, with "
                ",LOGGER=LEVEL for loggers."
            )
        found[name] = number
    return found
