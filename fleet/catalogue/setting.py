"""The declaration of one setting: its kind, its place in forms, and the effect of a change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from fleet.catalogue.kinds import Kind


class Section(StrEnum):
    """Groups of the admin's form, in their order there."""

    OFFER = ""
    FILES = "Files"
    WEIGHTS = "Weights"
    LIMITS = "Limits"
    SAMPLING = "Sampling"
    QUEUE = "Queue"
    PLACEMENT = "Placement"
    PRICES = "Prices"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    kind: Kind
    section: Section
    label: str
    """Empty: the field's name in words."""
    help_text: str
    travels: bool
    """Whether it is also a field of the load spec, under the same name."""
    decides_weights: bool
    """Whether measurements of earlier loads do not hold for another value."""


def setting(
    kind: Kind,
    section: Section,
    help_text: str = "",
    *,
    label: str = "",
    travels: bool = False,
    decides_weights: bool = False,
) -> Mapping[str, Setting]:
    """The ``metadata`` of a field of ``CatalogueSettings``."""
    described = Setting(
        kind=kind,
        section=section,
        label=label,
        help_text=help_text,
        travels=travels,
        decides_weights=decides_weights,
    )
    return {"setting": described}
