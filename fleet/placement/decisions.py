"""What placement can decide about one request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleet.catalogue import CatalogueEntry
from inference.protocol.load import StageSpec

Catalogue = Mapping[str, CatalogueEntry]
"""Every enabled model by its name: what evictable models are worth."""


def stage_evictions(stages: Sequence[StageSpec]) -> tuple[tuple[str, str], ...]:
    """The neuron and the model of each that leaves for stages on other neurons; each once."""
    found = ((stage.neuron, model) for stage in stages for model in stage.evict)
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    neuron: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """``devices`` are where on that neuron, ``evict`` names the models that must leave it first;
    ``stages`` have those of other neurons."""

    neuron: str
    model: str
    devices: tuple[str, ...] = ()
    stages: tuple[StageSpec, ...] = ()
    """How its layers are divided over those; empty: they are not."""
    predicted_tokens_per_s: float | None = None
    """One request's, by the plan of those stages."""
    evict: tuple[str, ...] = ()

    @property
    def evictions(self) -> tuple[tuple[str, str], ...]:
        """The neuron and the model of each that must leave."""
        own = ((self.neuron, model) for model in self.evict)
        return (*own, *stage_evictions(self.stages))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Place again shortly. ``reason`` is written for people; ``eta_s`` is None when unknown."""

    neuron: str
    model: str
    reason: str
    eta_s: float | None = None
    share: float | None = None
    """How much of the load that is waited for is done, 0 to 1; ``None``: it is unknown."""
    needs_time_slice: bool = False
    """Whether only replicas that are in use could make room, so that the model waits for a time
    slice."""
    is_for_drain: bool = False
    """Whether the model waits for the end of its host's drain."""

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
