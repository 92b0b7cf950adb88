"""``helexa-acp``: the editor starts it and talks to it over standard input and output."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys

from helexa_acp import __version__
from helexa_acp.config import load_config
from helexa_acp.errors import ConfigError
from helexa_acp.logs import set_up_logging

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


def main() -> None:
    """Reports a wrong configuration at once, before the import of the SDK, which takes longest."""
    if arguments := sys.argv[1:]:
        sys.exit(_print_answer(arguments))
    try:
        set_up_logging(os.environ)
        config = load_config(os.environ)
    except ConfigError as error:
        sys.exit(f"helexa-acp: {error}")
    from helexa_acp.serving import serve

    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve(config, os.environ))
    except ConfigError as error:
        sys.exit(f"helexa-acp: {error}")


def _print_answer(arguments: list[str]) -> int:
    """Prints the answer to the arguments; returns the exit code."""
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
