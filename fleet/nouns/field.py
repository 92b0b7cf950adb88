"""One field of a noun, as REST bodies and commands have it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.nouns.kinds import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """``name`` is the JSON's. ``flag`` is the command's, without dashes; empty: the name's."""

    name: str
    kind: Kind
    help: str = ""
    flag: str = ""
    placeholder: str = ""
    """How the command's help calls the value; empty: the flag in upper case."""
    is_required: bool = False
    """Whether a row cannot be made without it."""
    may_change: bool = True
    """Whether it can be changed once the row exists."""

    @property
    def option(self) -> str:
        return f"--{self.flag or self.name.replace('_', '-')}"
