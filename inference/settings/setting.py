"""A setting: one environment variable with its type, its default and its meaning."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")

MARKDOWN_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
EXIT_MISCONFIGURED = 2
"""The exit code of a process that refuses its settings."""


class SettingError(ValueError):
    """An environment variable has an invalid value. The message is for the operator and contains no
    secret."""


class Reader(Enum):
    SERVE = "serve"
    GATEWAY = "gateway"
    CONTROL = "control"
    NEURON = "neuron"
    ENGINE = "engine"
    COMMANDS = "commands"


class Kind(Protocol[T_co]):
    @property
    def rule(self) -> str:
        """The rule for its values, to be read after "is not"."""
        ...

    def parse(self, word: str) -> T_co:
        """The value of ``word``. Raises ``ValueError``, whose message names the wrong part if it
        can."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(Generic[T]):
    name: str
    kind: Kind[T]
    default: T = None  # type: ignore[assignment]  # only of a ``Setting[… | None]``
    default_words: str = ""
    """Describes the default, where ``default`` alone does not."""
    readers: frozenset[Reader] = frozenset({Reader.GATEWAY})
    doc: str
    """Markdown, for the operator."""
    is_secret: bool = False
    """No message contains the value."""
    is_internal: bool = False
    """helexa sets it for its own processes; the operator does not."""
    reads_blank: bool = False
    """An empty value is a value of its own instead of the default."""

    @property
    def default_text(self) -> str:
        if self.default_words:
            return self.default_words
        if self.default is None or self.default == ():
            return "none"
        value = int(self.default) if isinstance(self.default, bool) else self.default
        return str(value).removesuffix(".0")

    @property
    def plain_default(self) -> str:
        return _plain(self.default_text)

    @property
    def plain_doc(self) -> str:
        return _plain(self.doc)

    @property
    def readers_text(self) -> str:
        if self.readers == frozenset(Reader):
            return "all"
        return ", ".join(reader.value for reader in Reader if reader in self.readers)

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


def _plain(markdown: str) -> str:
    return MARKDOWN_LINK.sub(r"\1", markdown).replace("`", "")
