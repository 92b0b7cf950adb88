"""An upstream as plain data, frozen. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Dialect = Literal["openai", "anthropic", "ollama"]

DEFAULT_CONCURRENCY = 64
DEFAULT_CONNECT_TIMEOUT_S = 10
DEFAULT_FIRST_TOKEN_TIMEOUT_S = 300
DEFAULT_TOKEN_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamEntry:
    """``sealed_secret`` is encrypted, and in no ``repr`` all the same."""

    name: str
    url: str
    """Without a final slash."""
    dialect: Dialect = "openai"
    sealed_secret: str = field(default="", repr=False)
    """Empty: no key is sent."""
    leaves_network: bool = False
    concurrency: int = DEFAULT_CONCURRENCY
    """The most requests of each gateway at once; the others wait."""
    connect_timeout_s: int = DEFAULT_CONNECT_TIMEOUT_S
    first_token_timeout_s: int = DEFAULT_FIRST_TOKEN_TIMEOUT_S
    token_timeout_s: int = DEFAULT_TOKEN_TIMEOUT_S
    """Between two parts of an answer."""
    proxy: str = ""
    ca_file: str = ""
