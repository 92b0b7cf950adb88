"""What needs attention: plain data. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How urgent a finding is, in the order in which findings are shown."""

    URGENT = "urgent"
    """Somebody is not served, or soon will not be."""
    WARNING = "warning"
    NOTICE = "notice"
    """The fleet has no fault: there is something to do or to know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """``kind`` says what sort of thing it is, ``about`` which one: a neuron, a model, an account or
    a key, or nothing."""

    level: Level
    kind: str
    text: str
    about: str = ""
