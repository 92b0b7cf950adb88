"""The operator's models as plain data. No ORM, no clock, no I/O."""

from fleet.catalogue.entry import CatalogueEntry
from fleet.catalogue.kinds import Section, Setting
from fleet.catalogue.rules import (
    check_alias_name,
    check_name,
    check_settings,
    check_source,
    settings_problems,
    whole_source,
)
from fleet.catalogue.settings import DEFAULTS, SETTINGS, CatalogueSettings, SettingValue

__all__ = [
    "DEFAULTS",
    "SETTINGS",
    "CatalogueEntry",
    "CatalogueSettings",
    "Section",
    "Setting",
    "SettingValue",
    "check_alias_name",
    "check_name",
    "check_settings",
    "check_source",
    "settings_problems",
    "whole_source",
]
