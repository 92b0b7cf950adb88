"""What placement can decide about one request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fleet.catalogue import CatalogueEntry

Catalogue = Mapping[str, CatalogueEntry]
"""Every enabled model by its name: what evictable models are worth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    neuron: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """``devices`` are where on that neuron, ``evict`` names the models that must leave it first."""

    neuron: str
    model: str
    devices: tuple[str, ...] = ()
    evict: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Place again shortly. ``reason`` is written for people; ``eta_s`` is None when unknown."""

    neuron: str
    model: str
    reason: str
    eta_s: float | None = None
    share: float | None = None
    """How much of the load that is waited for is done, 0 to 1; ``None``: it is unknown."""
    needs_turn: bool = False
    """Only replicas that are in use could make room: the model waits for its turn."""

    @property
    def words(self) -> str:
        """How it goes, in one line."""
        share = "" if self.share is None else f", {self.share:.0%}"
        left = "" if self.eta_s is None else f", about {max(1, round(self.eta_s))} s left"
        return f"{self.reason}{share}{left}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """``code`` is no_neuron, not_enough_memory, model_recovering, load_failed (each a 503), or the
    code of a failure that no retry cures; ``message`` is for the client. ``retry_after_s`` is None
    where a retry makes no sense until the operator changes something."""

    code: str
    message: str
    retry_after_s: float | None
    model_id: str = ""
    """The source of a model that does not load, as ``huggingface:org/name``."""
    suggestion: str = ""


Decision = Route | Load | Wait | Reject
