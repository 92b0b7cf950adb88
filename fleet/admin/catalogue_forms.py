"""The forms of catalogue models and aliases. A model's follows the table of its settings.

Money is entered as decimal USD and stored as micro-USD; neurons' names are separated by commas or
spaces and targets by lines, and both are stored as lists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.core.exceptions import ValidationError
from unfold.widgets import (
    UnfoldAdminDecimalFieldWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
)

from fleet import services
from fleet.admin.unfold_types import CheckedForm
from fleet.catalogue import SETTINGS, Section
from fleet.catalogue.kinds import Money, NeuronNames, Targets
from fleet.models import Alias, CatalogueModel
from metering.money import micro_usd_of, usd_digits

if TYPE_CHECKING:
    from django.contrib.admin.options import _FieldOpts

DECIMAL_PLACES = 6
MAX_DIGITS = 15


class UsdField(forms.DecimalField):
    """Exact to the micro-USD; a seventh decimal is refused. Cleans to ``int`` or ``None``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            required=False,
            min_value=0,
            max_digits=MAX_DIGITS,
            decimal_places=DECIMAL_PLACES,
            widget=UnfoldAdminDecimalFieldWidget,
            **options,
        )

    def clean(self, value: Any) -> Any:
        usd = super().clean(value)
        return None if usd is None else micro_usd_of(str(usd))

    def prepare_value(self, value: Any) -> Any:
        if not isinstance(value, int):
            return value
        return usd_digits(value)

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            return bool(self.clean(data) != initial)
        except ValidationError:
            return True


class NeuronNamesField(forms.CharField):
    """Cleans to a list. A neuron may be named before it has joined."""

    def __init__(self, **options: Any) -> None:
        super().__init__(required=False, widget=UnfoldAdminTextInputWidget, **options)

    def clean(self, value: Any) -> Any:
        return super().clean(value).replace(",", " ").split()

    def prepare_value(self, value: Any) -> Any:
        return ", ".join(value) if isinstance(value, list) else value

    def has_changed(self, initial: Any, data: Any) -> bool:
        return bool(self.clean(data) != (initial or []))


class TargetsField(forms.CharField):
    """One target a line. Cleans to a list."""

    def __init__(self, **options: Any) -> None:
        widget = UnfoldAdminTextareaWidget(attrs={"rows": 3, "placeholder": "one a line"})
        super().__init__(required=False, widget=widget, **options)

    def clean(self, value: Any) -> Any:
        lines = (line.strip() for line in super().clean(value).splitlines())
        return [line for line in lines if line]

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(value) if isinstance(value, list) else value

    def has_changed(self, initial: Any, data: Any) -> bool:
        return bool(self.clean(data) != (initial or []))


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


COMMON = ("source", "file", "enabled", "pinned", "quantization", "max_context_tokens")
"""The settings that a form shows at once."""


def fieldsets() -> tuple[tuple[str | None, _FieldOpts], ...]:
    """A model's name and its common settings; the others by section, folded. A section with an
    error is open."""
    advanced = tuple(
        (f"Advanced: {section.value or 'Offer'}", _folded(section)) for section in Section
    )
    return ((None, {"fields": ("name", *COMMON)}), *advanced)


def _folded(section: Section) -> _FieldOpts:
    names = [name for name, setting in SETTINGS.items() if setting.section is section]
    fields = tuple(name for name in names if name not in COMMON)
    return {"fields": fields, "classes": ("collapse",)}


def setting_field(name: str) -> forms.Field | None:
    """The form's field of a setting whose column holds another form than people write."""
    if name not in SETTINGS:
        return None
    setting = SETTINGS[name]
    label = (setting.label or name.replace("_", " ")).capitalize()
    match setting.kind:
        case Money():
            return UsdField(label=label, help_text=setting.help_text)
        case NeuronNames():
            return NeuronNamesField(label=label, help_text=setting.help_text)
        case Targets():
            return TargetsField(label=label, help_text=setting.help_text)
        case _:
            return None
