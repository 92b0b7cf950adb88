"""The forms of catalogue models and aliases. A model's follows the table of its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django import forms

from fleet import services
from fleet.admin.checked_form import CheckedForm
from fleet.admin.neuron_names_field import NeuronNamesField
from fleet.admin.usd_field import UsdField
from fleet.catalogue import SETTINGS, Section
from fleet.catalogue.kinds import Money, NeuronNames
from fleet.models import Alias, CatalogueModel

if TYPE_CHECKING:
    from django.contrib.admin.options import _FieldOpts


class CatalogueModelForm(CheckedForm):
    class Meta:
        model = CatalogueModel
        fields = "__all__"

    def check_row(self) -> None:
        services.catalogue_model_check(model=self.instance)


class AliasForm(CheckedForm):
    class Meta:
        model = Alias
        fields = "__all__"

    def check_row(self) -> None:
        services.alias_check(alias=self.instance)


def fieldsets() -> tuple[tuple[str | None, _FieldOpts], ...]:
    """A model's settings by section, and its name before them."""
    groups = [
        (section, [name for name, setting in SETTINGS.items() if setting.section is section])
        for section in Section
    ]
    return tuple(
        (
            section.value or None,
            {"fields": ("name", *names) if section is Section.OFFER else tuple(names)},
        )
        for section, names in groups
    )


def setting_field(name: str) -> forms.Field | None:
    """The form's field of a setting that people write otherwise than its column holds it."""
    if name not in SETTINGS:
        return None
    setting = SETTINGS[name]
    label = (setting.label or name.replace("_", " ")).capitalize()
    match setting.kind:
        case Money():
            return UsdField(label=label, help_text=setting.help_text)
        case NeuronNames():
            return NeuronNamesField(label=label, help_text=setting.help_text)
        case _:
            return None
