"""The catalogue as it is, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet.catalogue import CatalogueSettings
from fleet.upstreams.entry import UpstreamEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueState:
    """Every model, offered or not, and every alias with the name of its model, and every
    upstream."""

    models: Mapping[str, CatalogueSettings]
    aliases: Mapping[str, str]
    upstreams: Mapping[str, UpstreamEntry] = field(default_factory=dict)
