"""What a reader asked the board to show: searches, filters, pages, unfolded neurons. Pure.

The address holds it, and so does the board itself: each refresh sends it back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self
from urllib.parse import urlencode

from django.http import QueryDict

MAX_PAGE = 10_000


class Shown(StrEnum):
    """Which models are listed."""

    ALL = ""
    LOADED = "loaded"
    ACTIVE = "active"
    """A job is under way."""
    PROBLEMS = "problems"
    UNLOADED = "unloaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardQuery:
    models: str = ""
    """Part of the names of the models."""
    shown: Shown = Shown.ALL
    models_page: int = 1
    neurons: str = ""
    """Part of the names of the neurons."""
    neurons_page: int = 1
    flipped: frozenset[str] = frozenset()
    """Neurons that are folded where they would be unfolded, and the reverse."""
    kept_models: tuple[str, ...] = ()
    kept_neurons: tuple[str, ...] = ()
    """The rows that the reader has before them: a refresh leaves each in its place."""

    @classmethod
    def of(cls, query: QueryDict) -> Self:
        """What cannot be read counts as not asked."""
        shown = query.get("shown", "")
        return cls(
            models=query.get("models", "").strip(),
            shown=Shown(shown) if shown in set(Shown) else Shown.ALL,
            models_page=_page(query.get("models_page", "")),
            neurons=query.get("neurons", "").strip(),
            neurons_page=_page(query.get("neurons_page", "")),
            flipped=frozenset(query.get("flipped", "").split()),
            kept_models=tuple(query.get("kept_models", "").split()),
            kept_neurons=tuple(query.get("kept_neurons", "").split()),
        )

    def url_query(self) -> str:
        """The query of an address; empty where nothing was asked. Kept rows are no part of it."""
        asked = {
            "models": self.models,
            "shown": self.shown.value,
            "models_page": self.models_page if self.models_page > 1 else "",
            "neurons": self.neurons,
            "neurons_page": self.neurons_page if self.neurons_page > 1 else "",
            "flipped": " ".join(sorted(self.flipped)),
        }
        found = urlencode({key: value for key, value in asked.items() if value})
        return f"?{found}" if found else ""

    def at_models_page(self, page: int) -> BoardQuery:
        return replace(self, models_page=page)

    def at_neurons_page(self, page: int) -> BoardQuery:
        return replace(self, neurons_page=page)

    def with_flipped(self, neuron: str) -> BoardQuery:
        return replace(self, flipped=self.flipped ^ {neuron})


def _page(words: str) -> int:
    if words.isascii() and words.isdigit() and 1 <= int(words[:9]) <= MAX_PAGE:
        return int(words[:9])
    return 1
