"""``helexa-acp``: the editor starts it and talks to it over standard input and output."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import sys
from collections.abc import Mapping

from helexa_acp.config import load_config
from helexa_acp.errors import ConfigError


def main() -> None:
    """A configuration that is wrong is said at once: the SDK takes longest to import."""
    try:
        set_up_logging(os.environ)
        config = load_config(os.environ)
    except ConfigError as error:
        sys.exit(f"helexa-acp: {error}")
    gc.disable()  # What is imported stays.
    import helexa_acp.quick_import  # noqa: F401 - before anything that imports the SDK
    from helexa_acp import lazy_packages
    from helexa_acp.serving import serve

    lazy_packages.install()
    gc.freeze()
    gc.enable()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(config, os.environ))


def set_up_logging(environ: Mapping[str, str]) -> None:
    """To a file or to standard error: standard output belongs to the protocol."""
    path = environ.get("HELEXA_ACP_LOG_FILE")
    try:
        handler = logging.FileHandler(path) if path else logging.StreamHandler(sys.stderr)
    except OSError as error:
        raise ConfigError(f"HELEXA_ACP_LOG_FILE {path} cannot be written: {error}") from None
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    # These say every request, with its address.
    for name in ("httpx2", "httpcore2", "openai", "anthropic"):
        logging.getLogger(name).setLevel(logging.WARNING)


if __name__ == "__main__":
    main()
