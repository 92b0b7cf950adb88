"""What needs attention: plain data. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How urgent a finding is, in the order in which findings are shown."""

    URGENT = "urgent"
    """Clients are not served, or soon will not be."""
    WARNING = "warning"
    NOTICE = "notice"
    """The fleet has no fault: there is something to do or to know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """``kind`` is the sort of finding, ``about`` its object: a neuron, a model, an account, a key,
    or empty."""

    level: Level
    kind: str
    text: str
    about: str = ""
