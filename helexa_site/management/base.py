"""The base of helexa's commands: without checks of the project, with exit codes, and a server."""

from __future__ import annotations

import os
import urllib.parse
from enum import IntEnum
from pathlib import Path

from django.core.management.base import BaseCommand, CommandError

from helexa_site.data_directory import find_running
from inference.settings.gateway import API_KEY
from inference.settings.installation import URL

DEFAULT_URL = "http://127.0.0.1:31313"


class QuickCommand(BaseCommand):
    """Without system checks: they import every page, and concern no setting of an operator's."""

    requires_system_checks: list[str] = []


class ExitCode(IntEnum):
    """For scripts. Documented in docs/operating/install.md."""

    DONE = 0
    REFUSED = 1
    USAGE = 2
    """The command line is wrong. argparse exits with it."""
    NOT_FOUND = 3
    CONFLICT = 4
    DENIED = 5
    UNAVAILABLE = 6
    """The same command may succeed later."""


BY_STATUS = {
    401: ExitCode.DENIED,
    403: ExitCode.DENIED,
    404: ExitCode.NOT_FOUND,
    409: ExitCode.CONFLICT,
    429: ExitCode.UNAVAILABLE,
    502: ExitCode.UNAVAILABLE,
    503: ExitCode.UNAVAILABLE,
    504: ExitCode.UNAVAILABLE,
}


def exit_code(http_status: int) -> ExitCode:
    return BY_STATUS.get(http_status, ExitCode.REFUSED)


def server_url(url: str | None, data_dir: Path) -> str:
    """``url``, else ``HELEXA_URL``, else that of the serve of ``data_dir``, else ``DEFAULT_URL``.
    Raises ``CommandError`` for a URL that no server can have."""
    return server_and_key(url, None, data_dir)[0]


def server_and_key(url: str | None, key: str | None, data_dir: Path) -> tuple[str, str | None]:
    """``server_url``, and ``key``, else ``HELEXA_API_KEY``. The key of the serve of ``data_dir`` is
    for itself alone: a named server never receives it. Raises ``CommandError``."""
    key = key or API_KEY.read(os.environ)
    if named := url or URL.read(os.environ):
        return checked_url(named), key
    running = find_running(data_dir)
    if running is None:
        return DEFAULT_URL, key
    return running.url, key or running.key


def checked_url(url: str) -> str:
    """Raises ``CommandError``."""
    try:
        parts = urllib.parse.urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_one = False
    if not is_one:
        raise CommandError(f"{url!r} is not like http://gpu-box:31313")
    return url
