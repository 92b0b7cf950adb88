"""Reads settings out of an environment, each by its type, and knows which it was asked for.

What it was asked for are all the settings there are: the doctor and the backup need that list.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS = frozenset({"", "0", "false", "no", "off"})
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+")
"""Scheme, host and port, as browsers send it: no path, no slash at the end."""
HOST = re.compile(r"(\*\.)?([a-z0-9_.-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?")
"""A name or an address; the port where it is not the usual one."""
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class ConfigError(Exception):
    """An environment variable holds something that its setting cannot be."""


class Variables:
    """Each method raises ``ConfigError`` naming a variable that it cannot read."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.asked: set[str] = set()
        """Names of all that was read so far, set or not."""

    def text_or_none(self, name: str) -> str | None:
        """``None`` where it is not set, which is another thing than being empty."""
        self.asked.add(name)
        return self._environment.get(name)

    def text(self, name: str) -> str:
        return self.text_or_none(name) or ""

    def flag(self, name: str) -> bool:
        word = self.text(name).strip().lower()
        if word in TRUE_WORDS:
            return True
        if word in FALSE_WORDS:
            return False
        raise ConfigError(f"{name}={word!r} is neither true nor false; use 1 or 0")

    def flag_or_none(self, name: str) -> bool | None:
        return self.flag(name) if self.text(name) else None

    def word(self, name: str, known: tuple[str, ...]) -> str:
        """The first of ``known`` where nothing is set."""
        word = self.text(name).strip().lower() or known[0]
        if word not in known:
            raise ConfigError(f"{name}={word!r} is none of {', '.join(known)}")
        return word

    def integer(self, name: str, default: int, *, minimum: int) -> int:
        word = self.text(name).strip()
        if not word:
            return default
        try:
            value = int(word)
        except ValueError:
            raise ConfigError(f"{name}={word!r} is not a whole number") from None
        if value < minimum:
            raise ConfigError(f"{name}={value} is under its minimum of {minimum}")
        return value

    def percent(self, name: str, default: int) -> int:
        value = self.integer(name, default, minimum=0)
        if value > 100:
            raise ConfigError(f"{name}={value} is over 100")
        return value

    def words(self, name: str) -> tuple[str, ...]:
        return tuple(word for word in self.text(name).replace(",", " ").split() if word)

    def origins(self, name: str) -> tuple[str, ...]:
        origins = self.words(name)
        for origin in origins:
            if origin != "*" and not ORIGIN.fullmatch(origin):
                raise ConfigError(f"{name}: {origin!r} is not like https://chat.example.org")
        return origins

    def image_hosts(self, name: str) -> tuple[str, ...]:
        hosts = tuple(word.lower() for word in self.words(name))
        for host in hosts:
            if host != "*" and not HOST.fullmatch(host):
                raise ConfigError(f"{name}: {host!r} is not like images.example.org or 10.0.0.5:80")
        return hosts

    def networks(self, name: str) -> tuple[Network, ...]:
        """Addresses and CIDR networks, as ``127.0.0.1, 10.1.0.0/16``."""
        networks = []
        for word in self.words(name):
            try:
                networks.append(ipaddress.ip_network(word))
            except ValueError as error:
                raise ConfigError(f"{name}: {error}") from None
        return tuple(networks)
