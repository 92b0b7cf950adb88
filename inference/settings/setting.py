"""A setting: one environment variable with its kind and its default.

What it means, who reads it and its default in words are on the operator's page,
``docs/operating/settings.md``, which packages contain beside this module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")

PAGE = Path(__file__).with_name("settings.md")
MARKDOWN_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
EXIT_MISCONFIGURED = 2
"""The exit code of a process that refuses its settings."""


class SettingError(ValueError):
    """An environment variable has an invalid value. The message is for the operator and contains no
    secret."""


class Kind(Protocol[T_co]):
    @property
    def rule(self) -> str:
        """The rule for its values, to be read after "is not"."""
        ...

    def parse(self, word: str, /) -> T_co:
        """The value of ``word``. Raises ``ValueError``, whose message names the wrong part if it
        can."""
        ...


class PageRow(NamedTuple):
    default: str
    rule: str
    readers: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    name: str
    kind: Kind[T]
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
    """The rows of the page's table by variable, without Markdown."""
    lines = (line for line in PAGE.read_text().splitlines() if line.startswith("| `"))
    cells = (MARKDOWN_LINK.sub(r"\1", line).replace("`", "").strip("| ") for line in lines)
    return {name: PageRow(*row) for name, *row in (line.split(" | ") for line in cells)}
