"""Types of settings that are one value or a plain list, and bounds that several have."""

from __future__ import annotations

import ipaddress
import math
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

MIB = 1024**2
GIB = 1024**3
MAX_COUNT = 2**31 - 1
MAX_BYTES = 2**53 - 1
"""The largest exact integer of a JSON number."""
MAX_WAIT_S = 30 * 24 * 3600
MAX_RETENTION_DAYS = 36_500
"""A century: dates begin with the year 1."""


TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS = frozenset({"0", "false", "no", "off"})
WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,30}")
DECIMAL_NUMBER = re.compile(r"[+-]?([0-9]{1,30}\.?[0-9]{0,30}|\.[0-9]{1,30})([eE][+-]?[0-9]{1,3})?")


@dataclass(frozen=True, slots=True)
class WholeNumber:
    minimum: int
    maximum: int
    unit: str

    @property
    def rule(self) -> str:
        return f"a whole number of {self.unit} from {self.minimum} to {self.maximum}"

    def parse(self, word: str) -> int:
        if not WHOLE_NUMBER.fullmatch(word.strip()):
            raise ValueError
        value = int(word)
        if not self.minimum <= value <= self.maximum:
            raise ValueError
        return value


@dataclass(frozen=True, slots=True)
class Decimal:
    minimum: float
    maximum: float
    unit: str

    @property
    def rule(self) -> str:
        return f"a number of {self.unit} from {self.minimum:g} to {self.maximum:.12g}"

    def parse(self, word: str) -> float:
        if not DECIMAL_NUMBER.fullmatch(word.strip()):
            raise ValueError
        value = float(word)
        if not math.isfinite(value) or not self.minimum <= value <= self.maximum:
            raise ValueError
        return value


@dataclass(frozen=True, slots=True)
class Flag:
    rule: str = "1 or 0 (or true, yes, on, false, no, off)"

    def parse(self, word: str) -> bool:
        word = word.strip().lower()
        if word not in TRUE_WORDS | FALSE_WORDS:
            raise ValueError
        return word in TRUE_WORDS


@dataclass(frozen=True, slots=True)
class Choice:
    words: tuple[str, ...]

    @property
    def rule(self) -> str:
        return " or ".join(self.words)

    def parse(self, word: str) -> str:
        word = word.strip().lower()
        if word not in self.words:
            raise ValueError
        return word


@dataclass(frozen=True, slots=True)
class Text:
    rule: str = "a text"
    min_characters: int = 0

    def parse(self, word: str) -> str:
        if len(word.strip()) < self.min_characters:
            raise ValueError
        return word


@dataclass(frozen=True, slots=True)
class FilePath:
    rule: str = "a path"

    def parse(self, word: str) -> Path:
        return Path(word)


@dataclass(frozen=True, slots=True)
class Command:
    rule: str = "a command line"

    def parse(self, word: str) -> tuple[str, ...]:
        return tuple(shlex.split(word))


PYTHON_NAME = re.compile(r"[A-Za-z_][\w.]{0,199}:[A-Za-z_][\w.]{0,199}", re.ASCII)


@dataclass(frozen=True, slots=True)
class PythonName:
    """A name for ``pkgutil.resolve_name``."""

    rule: str = "a module and a name in it like package.module:name"

    def parse(self, word: str) -> str:
        if not PYTHON_NAME.fullmatch(word.strip()):
            raise ValueError
        return word.strip()


LEVELS = ("debug", "info", "warning", "error")
LOGGER_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,199}")


@dataclass(frozen=True, slots=True)
class LogLevel:
    """A process' log level. ``default`` is ``None`` where only loggers are named."""

    default: str | None = None
    by_logger: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class LogLevels:
    """``info`` or ``info,inference.neuron=debug``: a level, and levels of loggers by their name."""

    @property
    def rule(self) -> str:
        return f"{', '.join(LEVELS[:-1])} or {LEVELS[-1]}, with ,LOGGER=LEVEL for loggers"

    def parse(self, word: str) -> LogLevel:
        default: str | None = None
        by_logger: dict[str, str] = {}
        for part in word.split(","):
            name, equals, level = (piece.strip() for piece in part.rpartition("="))
            level = level.lower()
            if level not in LEVELS:
                raise ValueError(f"{level!r} is no level")
            if not equals:
                if default is not None:
                    raise ValueError("it has two levels without a logger")
                default = level
            elif not LOGGER_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no logger's name")
            elif by_logger.setdefault(name, level) != level:
                raise ValueError(f"{name} has two levels")
        return LogLevel(default, tuple(by_logger.items()))


Network = ipaddress.IPv4Network | ipaddress.IPv6Network

ORIGIN = re.compile(r"(?i)[a-z][a-z0-9+.-]*://[^/\s?#]+")
"""Scheme, host and port, as browsers send them: no path and no final slash."""
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
    form: re.Pattern[str]
    rule: str
    may_be_any: bool = False
    lowers: bool = False

    def parse(self, word: str) -> tuple[str, ...]:
        found = words_of(word.lower() if self.lowers else word)
        for one in found:
            if not (one == "*" and self.may_be_any) and not self.form.fullmatch(one):
                raise ValueError(f"{one!r}")
        return found


@dataclass(frozen=True, slots=True)
class Networks:
    rule: str = "a list of addresses and networks like 127.0.0.1, 10.1.0.0/16"

    def parse(self, word: str) -> tuple[Network, ...]:
        return tuple(ipaddress.ip_network(one) for one in words_of(word))


@dataclass(frozen=True, slots=True)
class Url:
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
    rule: str = "an address without a path, like https://chat.example.org"

    def parse(self, word: str) -> str:
        word = word.strip().removesuffix("/").lower()
        if not WEB_ORIGIN.fullmatch(word) or "*" in word or urlsplit(word).port == 0:
            raise ValueError
        return word


@dataclass(frozen=True, slots=True)
class UrlOrOff:
    rule: str = "an address like https://example.org/path, or off"

    def parse(self, word: str) -> str | None:
        word = word.strip().rstrip("/")
        if not word or word.lower() in OFF_WORDS:
            return None
        return Url(("http", "https"), self.rule).parse(word)
