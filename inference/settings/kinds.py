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
    """Of what it is a number: ``bytes``, ``seconds``, ``requests``."""

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
