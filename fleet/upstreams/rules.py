"""Checks an upstream's values. Pure.

Every check raises ``UpstreamValueError`` with the field that cannot hold its value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from fleet.errors import UpstreamValueError
from fleet.upstreams.entry import Dialect, UpstreamEntry
from inference.protocol.generation import NEUTRAL_VALUES

NAME = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*")
MAX_NAME_LENGTH = 63
SCHEMES = ("http", "https")
MAX_SECRET_LENGTH = 4096
MAX_CONCURRENCY = 10_000
MAX_TIMEOUT_S = 3600
MOST = {
    "concurrency": MAX_CONCURRENCY,
    "connect_timeout_s": MAX_TIMEOUT_S,
    "first_token_timeout_s": MAX_TIMEOUT_S,
    "token_timeout_s": MAX_TIMEOUT_S,
}
WITHOUT_A_WORD = ("repetition_window",)
"""Sampling defaults that no dialect has."""
UNTRANSLATED_DEFAULTS: Mapping[Dialect, tuple[str, ...]] = {
    "anthropic": ("min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
}
"""The sampling defaults that a dialect lacks, beside ``WITHOUT_A_WORD``."""
MAX_TEMPERATURES: Mapping[Dialect, float] = {"anthropic": 1.0}


def check_upstream(entry: UpstreamEntry) -> None:
    if not NAME.fullmatch(entry.name) or len(entry.name) > MAX_NAME_LENGTH:
        raise UpstreamValueError(
            "name",
            f"{entry.name!r} is not an upstream's name: lower-case letters and digits, joined by "
            f"single dots, hyphens or underscores, {MAX_NAME_LENGTH} at most",
        )
    parts = _address("url", entry.url)
    if parts.query or parts.fragment:
        raise UpstreamValueError("url", "An upstream's URL has neither a query nor a fragment")
    if entry.proxy:
        _address("proxy", entry.proxy)
    if entry.ca_file and not entry.ca_file.startswith("/"):
        raise UpstreamValueError("ca_file", f"{entry.ca_file!r} is not an absolute path")
    for name, most in MOST.items():
        if not 1 <= getattr(entry, name) <= most:
            raise UpstreamValueError(name, f"{getattr(entry, name)} is not from 1 to {most:,}")


def check_secret(secret: str) -> None:
    """Raises ``UpstreamValueError`` for a key that cannot stand in an HTTP header."""
    if len(secret) > MAX_SECRET_LENGTH:
        raise UpstreamValueError("key", f"A key has at most {MAX_SECRET_LENGTH:,} characters")
    if not secret.isascii() or any(character <= " " or character == "\x7f" for character in secret):
        raise UpstreamValueError("key", "A key holds no spaces, control or non-ASCII characters")


def untranslated_defaults(dialect: Dialect, defaults: Mapping[str, Any]) -> list[str]:
    """The names of a model's sampling defaults that no request to such an upstream can have."""
    found = [
        name
        for name in (*WITHOUT_A_WORD, *UNTRANSLATED_DEFAULTS.get(dialect, ()))
        if defaults.get(name) not in (None, NEUTRAL_VALUES.get(name))
    ]
    is_too_hot = (defaults.get("temperature") or 0) > MAX_TEMPERATURES.get(dialect, math.inf)
    return [*found, "temperature"] if is_too_hot else found


def origin(url: str) -> tuple[str, str | None, int | None]:
    """The receiver of a secret: scheme, host and port."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def _address(field: str, url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_one = False
    if not is_one or any(character <= " " or character == "\x7f" for character in url):
        raise UpstreamValueError(field, f"This is not a URL like http://gpu-box:8000/v1: {url!r}")
    if parts.username is not None or parts.password is not None:
        raise UpstreamValueError(
            field, "A URL with a name or a password in it would be shown: it holds neither"
        )
    return parts
