"""``helexa-acp``, which an editor starts and speaks to over standard input and output."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import sys
from collections.abc import Mapping

from helexa_acp import __version__
from helexa_acp.config import load_config
from helexa_acp.errors import ConfigError

NAMES = ("debug", "info", "warning", "error")
LEVELS = {name: logging.getLevelNamesMapping()[name.upper()] for name in NAMES}
LOGGER_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,199}")
TALKATIVE = ("asyncio", "httpx2", "httpcore2")
"""Libraries that log every request, with its address: at WARNING, unless they are named."""
HELP = """\
usage: helexa-acp [--help | --version]

An ACP agent (https://agentclientprotocol.com) for the models of a helexa or any other endpoint.
An editor starts it and talks to it over standard input and output.

  HELEXA_ACP_BASE_URL      the endpoint (default: http://127.0.0.1:31313/v1)
  HELEXA_ACP_API_KEY       its key
  HELEXA_ACP_MODEL         the model to begin with
  HELEXA_ACP_CONFIG_PATH   a TOML file with several endpoints and more settings
  HELEXA_ACP_LOG_FILE      where the log goes (default: standard error)
  HELEXA_LOG_LEVEL         what the log has: debug, info (default), warning or error

The README has an editor's settings and every other setting.
"""


def set_up_logging(environ: Mapping[str, str]) -> None:
    levels = read_levels(environ.get("HELEXA_LOG_LEVEL", ""))
    level = levels.pop("", logging.INFO)
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    failure = ""
    if path := environ.get("HELEXA_ACP_LOG_FILE"):
        try:
            handler = logging.FileHandler(path)
        except OSError as error:
            failure = f"HELEXA_ACP_LOG_FILE {path} cannot be written, logging here: {error}"
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
    quiet = dict.fromkeys(TALKATIVE, max(level, logging.WARNING))
    for name, its_level in (quiet | levels).items():
        logging.getLogger(name).setLevel(its_level)
    if failure:
        logging.getLogger(__name__).warning(failure)


def read_levels(word: str) -> dict[str, int]:
    """The empty name is for all other loggers. Raises ``ConfigError``."""
    found: dict[str, int] = {}
    for part in word.split(",") if word.strip() else ():
        name, equals, level = (piece.strip() for piece in part.rpartition("="))
        number = LEVELS.get(level.lower())
        is_second = name in found and (not equals or found[name] != number)
        if number is None or is_second or (equals and not LOGGER_NAME.fullmatch(name)):
            raise ConfigError(
                f"HELEXA_LOG_LEVEL={word!r} is not one of {', '.join(LEVELS)}, with "
                ",LOGGER=LEVEL for loggers."
            )
        found[name] = number
    return found


def main() -> None:
    """Reports a wrong configuration before the slow import of the SDK."""
    if arguments := sys.argv[1:]:
        sys.exit(_print_answer(arguments))
    try:
        set_up_logging(os.environ)
        config = load_config(os.environ)
    except ConfigError as error:
        sys.exit(f"helexa-acp: {error}")
    from helexa_acp.agent import serve

    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve(config, os.environ))
    except ConfigError as error:
        sys.exit(f"helexa-acp: {error}")


def _print_answer(arguments: list[str]) -> int:
    if arguments in (["--help"], ["-h"]):
        print(HELP, end="")
        return 0
    if arguments == ["--version"]:
        print(f"helexa-acp {__version__}")
        return 0
    print(f"helexa-acp: it takes no {arguments[0]!r}; see helexa-acp --help", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
