"""The operator's models as plain data. No ORM, no clock, no I/O."""

from fleet.catalogue.entry import CatalogueEntry as CatalogueEntry
from fleet.catalogue.kinds import Section as Section
from fleet.catalogue.kinds import Setting as Setting
from fleet.catalogue.rules import check_alias_name as check_alias_name
from fleet.catalogue.rules import check_name as check_name
from fleet.catalogue.rules import check_settings as check_settings
from fleet.catalogue.rules import check_source as check_source
from fleet.catalogue.rules import settings_problems as settings_problems
from fleet.catalogue.rules import whole_source as whole_source
from fleet.catalogue.settings import DEFAULTS as DEFAULTS
from fleet.catalogue.settings import SETTINGS as SETTINGS
from fleet.catalogue.settings import CatalogueSettings as CatalogueSettings
from fleet.catalogue.settings import SettingValue as SettingValue
