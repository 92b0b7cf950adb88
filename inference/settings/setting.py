"""A setting: one environment variable with its kind and its default.

What it means, who reads it and its default in words are on the operator's page,
``docs/operating/settings.md``, which packages contain beside this module.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar
from urllib.parse import urlsplit

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")
Number = TypeVar("Number", int, float)

PAGE = Path(__file__).with_name("settings.md")
MARKDOWN_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
EXIT_MISCONFIGURED = 2
MIB = 1024**2
GIB = 1024**3
MAX_COUNT = 2**31 - 1
MAX_BYTES = 2**53 - 1
"""The largest exact integer of a JSON number."""
MAX_WAIT_S = 30 * 24 * 3600
MAX_RETENTION_DAYS = 36_500
"""A century: dates begin with the year 1."""
MAX_PORT = 65535

TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS = frozenset({"0", "false", "no", "off"})
OFF_WORDS = frozenset({"off", "0", "no", "none"})
WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,30}")
DECIMAL_NUMBER = re.compile(r"[+-]?([0-9]{1,30}\.?[0-9]{0,30}|\.[0-9]{1,30})([eE][+-]?[0-9]{1,3})?")
MODULE_AND_NAME = re.compile(r"[A-Za-z_][\w.]{0,199}:[A-Za-z_][\w.]{0,199}", re.ASCII)
LEVELS = ("debug", "info", "warning", "error")
LOGGER_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,199}")
ORIGIN = re.compile(r"(?i)https?://(\*\.)?([a-z0-9_.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class SettingError(ValueError):
    """The message is for the operator and contains no secret."""


@dataclass(frozen=True, slots=True)
class Form(Generic[T_co]):
    """``rule`` is read after "is not". ``parse`` raises ``ValueError``, whose message names the
    wrong part if it can."""

    rule: str
    parse: Callable[[str], T_co]


class PageRow(NamedTuple):
    default: str
    rule: str
    readers: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    name: str
    kind: Form[T]
    default: T = None  # type: ignore[assignment]  # only of a ``Setting[… | None]``
    is_secret: bool = False
    """No message contains the value."""
    is_internal: bool = False
    """helexa sets it for its own processes; the operator does not, and the page lacks it."""
    reads_blank: bool = False
    """An empty value is a value of its own instead of the default."""

    @property
    def on_page(self) -> PageRow:
        return page_rows()[self.name]

    def read(self, environment: Mapping[str, str]) -> T:
        word = environment.get(self.name)
        if word is None or not (word.strip() or self.reads_blank):
            return self.default
        try:
            return self.kind.parse(word)
        except ValueError as error:
            raise SettingError(self._refusal(word, str(error))) from None

    def _refusal(self, word: str, reason: str) -> str:
        shown = self.name if self.is_secret else f"{self.name}={word.strip()!r}"
        why = f": {reason}" if reason and not self.is_secret else ""
        return f"{shown} is not {self.kind.rule}{why}"


@cache
def page_rows() -> dict[str, PageRow]:
    lines = (line for line in PAGE.read_text().splitlines() if line.startswith("| `"))
    cells = (MARKDOWN_LINK.sub(r"\1", line).replace("`", "").strip("| ") for line in lines)
    return {name: PageRow(*row) for name, *row in (line.split(" | ") for line in cells)}


def whole(minimum: int, maximum: int, unit: str) -> Form[int]:
    rule = f"a whole number of {unit} from {minimum} to {maximum}"
    return Form(rule, _number(int, WHOLE_NUMBER, minimum, maximum))


def decimal(minimum: float, maximum: float, unit: str) -> Form[float]:
    rule = f"a number of {unit} from {minimum:g} to {maximum:.12g}"
    return Form(rule, _number(float, DECIMAL_NUMBER, minimum, maximum))


def _number(
    read: Callable[[str], Number], form: re.Pattern[str], minimum: Number, maximum: Number
) -> Callable[[str], Number]:
    def parse(word: str) -> Number:
        if not form.fullmatch(word.strip()) or not minimum <= read(word) <= maximum:
            raise ValueError
        return read(word)

    return parse


def text(rule: str = "a text", min_characters: int = 0) -> Form[str]:
    def parse(word: str) -> str:
        if len(word.strip()) < min_characters:
            raise ValueError
        return word

    return Form(rule, parse)


def choice(*words: str) -> Form[str]:
    def parse(word: str) -> str:
        if (word := word.strip().lower()) not in words:
            raise ValueError
        return word

    return Form(" or ".join(words), parse)


def words_of(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


def word_list(
    form: re.Pattern[str], rule: str, *, may_be_any: bool = False, lowers: bool = False
) -> Form[tuple[str, ...]]:
    def parse(word: str) -> tuple[str, ...]:
        found = words_of(word.lower() if lowers else word)
        for one in found:
            if not (one == "*" and may_be_any) and not form.fullmatch(one):
                raise ValueError(f"{one!r}")
        return found

    return Form(rule, parse)


def url(*schemes: str, rule: str) -> Form[str]:
    def parse(word: str) -> str:
        word = word.strip()
        parts = urlsplit(word)
        is_one = parts.scheme in schemes and word.lower().startswith(f"{parts.scheme}://")
        if not is_one or any(character.isspace() for character in word):
            raise ValueError
        if parts.scheme in ("http", "https") and (not parts.hostname or parts.port == 0):
            raise ValueError
        return word

    return Form(rule, parse)


def _flag(word: str) -> bool:
    word = word.strip().lower()
    if word not in TRUE_WORDS | FALSE_WORDS:
        raise ValueError
    return word in TRUE_WORDS


def _module_and_name(word: str) -> str:
    if not MODULE_AND_NAME.fullmatch(word.strip()):
        raise ValueError
    return word.strip()


def _origin(word: str) -> str:
    word = word.strip().removesuffix("/").lower()
    if not ORIGIN.fullmatch(word) or "*" in word or urlsplit(word).port == 0:
        raise ValueError
    return word


def _url_or_off(word: str) -> str | None:
    word = word.strip().rstrip("/")
    if not word or word.lower() in OFF_WORDS:
        return None
    return url("http", "https", rule="").parse(word)


@dataclass(frozen=True, slots=True)
class LogLevel:
    default: str | None = None
    by_logger: tuple[tuple[str, str], ...] = ()


def _log_level(word: str) -> LogLevel:
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


def _networks(word: str) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(one) for one in words_of(word))


FLAG = Form("1 or 0 (or true, yes, on, false, no, off)", _flag)
FILE_PATH = Form("a path", Path)
COMMAND = Form("a command line", lambda word: tuple(shlex.split(word)))
PYTHON_NAME = Form("a module and a name in it like package.module:name", _module_and_name)
WEB_ORIGIN = Form("an address without a path, like https://chat.example.org", _origin)
URL_OR_OFF = Form("an address like https://example.org/path, or off", _url_or_off)
NETWORKS = Form("a list of addresses and networks like 127.0.0.1, 10.1.0.0/16", _networks)
LOG_LEVELS = Form(
    "debug, info, warning or error, with ,LOGGER=LEVEL for loggers",
    _log_level,
)
