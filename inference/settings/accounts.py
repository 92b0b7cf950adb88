"""Settings that name accounts."""

from __future__ import annotations

from dataclasses import dataclass

ALL = "all"


@dataclass(frozen=True, slots=True)
class LoggedBodies:
    """The accounts whose texts the log may hold."""

    accounts: frozenset[str] = frozenset()
    are_all: bool = False

    def include(self, account: str) -> bool:
        return self.are_all or account in self.accounts

    def __str__(self) -> str:
        return ALL if self.are_all else ", ".join(sorted(self.accounts))


@dataclass(frozen=True, slots=True)
class Accounts:
    rule: str = "all, or names of accounts with commas between them"

    def parse(self, word: str) -> LoggedBodies:
        names = frozenset(filter(None, (name.strip() for name in word.split(","))))
        if not names:
            raise ValueError
        return LoggedBodies(are_all=True) if names == {ALL} else LoggedBodies(names)
