"""Endpoints of others that speak OpenAI's, Anthropic's or Ollama's API: plain data, rules, secret.

    Upstream (fleet.models) ──▶ UpstreamEntry ──▶ upstream_http ─┬▶ which models it has
                                                                 ├▶ upstream_probe: what works
                                                                 └▶ the gateway's requests

Every read of an endpoint is bounded in bytes and time, redirects are refused, and no address from
its answers is ever fetched. The database alone reveals no secret; a server with a new signing key
cannot open earlier ones.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import SplitResult, urlsplit

from fleet.errors import UpstreamSecretError, UpstreamValueError
from inference.protocol.generation import NEUTRAL_VALUES

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

Dialect = Literal["openai", "anthropic", "ollama"]

DEFAULT_CONCURRENCY = 64
DEFAULT_CONNECT_TIMEOUT_S = 10
DEFAULT_FIRST_TOKEN_TIMEOUT_S = 300
DEFAULT_TOKEN_TIMEOUT_S = 60

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

PURPOSE = b"helexa upstream secrets"
KEY_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamEntry:
    """``sealed_secret`` is encrypted, and in no ``repr`` all the same."""

    name: str
    url: str
    """It has no final slash."""
    dialect: Dialect = "openai"
    sealed_secret: str = field(default="", repr=False)
    """Empty: no key is sent."""
    leaves_network: bool = False
    concurrency: int = DEFAULT_CONCURRENCY
    """Limits each gateway's requests at once; others wait."""
    connect_timeout_s: int = DEFAULT_CONNECT_TIMEOUT_S
    first_token_timeout_s: int = DEFAULT_FIRST_TOKEN_TIMEOUT_S
    token_timeout_s: int = DEFAULT_TOKEN_TIMEOUT_S
    """Between two parts of an answer."""
    proxy: str = ""
    ca_file: str = ""


def check_upstream(entry: UpstreamEntry) -> None:
    """Raises ``UpstreamValueError`` with the field."""
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


def seal(secret: str, signing_key: str, purpose: bytes = PURPOSE) -> str:
    """Encrypts a secret under the server's signing key, for the database: an upstream's, or those
    of a load's links. ``purpose``: a secret sealed for another one does not open."""
    return _fernet(signing_key, purpose).encrypt(secret.encode()).decode()


def unseal(sealed: str, signing_key: str, purpose: bytes = PURPOSE) -> str:
    """Raises ``UpstreamSecretError`` where it was sealed under another signing key."""
    from cryptography.fernet import InvalidToken

    try:
        return _fernet(signing_key, purpose).decrypt(sealed.encode()).decode()
    except InvalidToken:
        raise UpstreamSecretError(
            "The upstream's key was stored under another HELEXA_SECRET_KEY: set it again with "
            "manage.py upstreams change NAME --key -"
        ) from None


@lru_cache(maxsize=4)
def _fernet(signing_key: str, purpose: bytes) -> Fernet:
    # Imported where it is used: it is 5 MiB of every process, and most have no secret.
    from cryptography.fernet import Fernet
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    derived = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=purpose)
    return Fernet(base64.urlsafe_b64encode(derived.derive(signing_key.encode())))
