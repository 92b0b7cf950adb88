"""The catalogue as it is, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fleet.catalogue import CatalogueSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueState:
    """Every model, offered or not, and every alias with the name of its model."""

    models: Mapping[str, CatalogueSettings]
    aliases: Mapping[str, str]
