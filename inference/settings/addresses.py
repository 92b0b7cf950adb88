"""Types of settings that are URLs, hosts, origins or networks."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from inference.settings.metrics_listen import MetricsSetting, parse_metrics_listen

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

ORIGIN = re.compile(r"(?i)[a-z][a-z0-9+.-]*://[^/\s?#]+")
"""Scheme, host and port, as browsers send them: no path and no slash at the end."""
WEB_ORIGIN = re.compile(r"(?i)https?://(\*\.)?([a-z0-9_.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
IMAGE_HOST = re.compile(r"(\*\.)?([a-z0-9_.-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?")
"""A name or an address, with a port where it is not the usual one."""
HOST_NAME = re.compile(r"(?i)\.?[a-z0-9_-]([a-z0-9_.-]*[a-z0-9_-])?\.?|\[[0-9a-f:.]+\]")
"""A name or an address without a port; a leading dot stands for all names under it."""
OFF_WORDS = frozenset({"off", "0", "no", "none"})


def words_of(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


@dataclass(frozen=True, slots=True)
class WordList:
    """Words with blanks or commas between them, each of one form."""

    form: re.Pattern[str]
    rule: str
    may_be_any: bool = False
    """Whether ``*`` is one of them."""
    lowers: bool = False

    def parse(self, word: str) -> tuple[str, ...]:
        found = words_of(word.lower() if self.lowers else word)
        for one in found:
            if not (one == "*" and self.may_be_any) and not self.form.fullmatch(one):
                raise ValueError(f"{one!r}")
        return found


@dataclass(frozen=True, slots=True)
class Networks:
    @property
    def rule(self) -> str:
        return "a list of addresses and networks like 127.0.0.1, 10.1.0.0/16"

    def parse(self, word: str) -> tuple[Network, ...]:
        return tuple(ipaddress.ip_network(one) for one in words_of(word))


@dataclass(frozen=True, slots=True)
class Url:
    """A URL of one of the schemes."""

    schemes: tuple[str, ...]
    rule: str

    def parse(self, word: str) -> str:
        word = word.strip()
        parts = urlsplit(word)
        is_one = parts.scheme in self.schemes and word.lower().startswith(f"{parts.scheme}://")
        if not is_one or any(character.isspace() for character in word):
            raise ValueError
        if parts.scheme in ("http", "https") and (not parts.hostname or parts.port == 0):
            raise ValueError
        return word


@dataclass(frozen=True, slots=True)
class WebOrigin:
    """Scheme, host and port of one server, in lower case and without a slash at the end."""

    @property
    def rule(self) -> str:
        return "an address without a path, like https://chat.example.org"

    def parse(self, word: str) -> str:
        word = word.strip().removesuffix("/").lower()
        if not WEB_ORIGIN.fullmatch(word) or "*" in word or urlsplit(word).port == 0:
            raise ValueError
        return word


@dataclass(frozen=True, slots=True)
class UrlOrOff:
    """A URL of http or https; ``None`` is "off"."""

    @property
    def rule(self) -> str:
        return "an address like https://example.org/path, or off"

    def parse(self, word: str) -> str | None:
        word = word.strip().rstrip("/")
        if not word or word.lower() in OFF_WORDS:
            return None
        return Url(("http", "https"), self.rule).parse(word)


@dataclass(frozen=True, slots=True)
class MetricsAddress:
    @property
    def rule(self) -> str:
        return "HOST:PORT, HOST, :PORT or off"

    def parse(self, word: str) -> MetricsSetting:
        return parse_metrics_listen(word)
