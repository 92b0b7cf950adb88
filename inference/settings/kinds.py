"""Types of settings that are numbers, flags, words or texts."""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS = frozenset({"0", "false", "no", "off"})
WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,30}")
DECIMAL_NUMBER = re.compile(r"[+-]?([0-9]{1,30}\.?[0-9]{0,30}|\.[0-9]{1,30})([eE][+-]?[0-9]{1,3})?")


@dataclass(frozen=True, slots=True)
class WholeNumber:
    minimum: int
    maximum: int
    unit: str
    """The unit that it counts: ``bytes``, ``seconds``, ``requests``."""

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
    """A number that need not be whole."""

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
    @property
    def rule(self) -> str:
        return "1 or 0 (or true, yes, on, false, no, off)"

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
    """Any text, as it is written."""

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
    """A command line, split into its arguments as a shell does."""

    @property
    def rule(self) -> str:
        return "a command line"

    def parse(self, word: str) -> tuple[str, ...]:
        return tuple(shlex.split(word))


PYTHON_NAME = re.compile(r"[A-Za-z_][\w.]{0,199}:[A-Za-z_][\w.]{0,199}", re.ASCII)


@dataclass(frozen=True, slots=True)
class PythonName:
    """What ``pkgutil.resolve_name`` finds."""

    rule: str = "a module and a name in it like package.module:name"

    def parse(self, word: str) -> str:
        if not PYTHON_NAME.fullmatch(word.strip()):
            raise ValueError
        return word.strip()


LEVELS = ("debug", "info", "warning", "error")
LOGGER_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,199}")


@dataclass(frozen=True, slots=True)
class LogLevel:
    """What a process logs. ``default`` is ``None`` where only loggers are named."""

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
