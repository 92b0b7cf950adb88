"""The form of a catalogue model, which follows the table of its settings: money is entered as
decimal USD and stored as micro-USD; lists are entered as text and stored as lists."""

from __future__ import annotations

import re
from typing import Any

from django import forms
from unfold.widgets import (
    UnfoldAdminDecimalFieldWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
)

from fleet.admin.unfold_types import Fieldsets, sections
from fleet.catalogue import SETTINGS, Section
from fleet.catalogue.kinds import Money, NeuronNames, Targets
from metering.money import micro_usd_of, usd_digits


class UsdField(forms.DecimalField):
    """Exact to the micro-USD; a seventh decimal is refused. Cleans to ``int`` or ``None``."""

    widget = UnfoldAdminDecimalFieldWidget

    def clean(self, value: Any) -> Any:
        usd = super().clean(value)
        return None if usd is None else micro_usd_of(str(usd))

    def prepare_value(self, value: Any) -> Any:
        return usd_digits(value) if isinstance(value, int) else value

    def has_changed(self, initial: Any, data: Any) -> bool:
        return super().has_changed(self.to_python(self.prepare_value(initial)), data)


class ListField(forms.CharField):
    """Cleans to a list. ``separator`` is a pattern, ``joint`` what stands between those shown."""

    def __init__(self, *, separator: str, joint: str, **options: Any) -> None:
        super().__init__(**options)
        self._separator, self._joint = separator, joint

    def clean(self, value: Any) -> Any:
        parts = (part.strip() for part in re.split(self._separator, super().clean(value)))
        return [part for part in parts if part]

    def prepare_value(self, value: Any) -> Any:
        return self._joint.join(value) if isinstance(value, list) else value

    def has_changed(self, initial: Any, data: Any) -> bool:
        return bool(self.clean(data) != (initial or []))


def setting_field(name: str) -> forms.Field | None:
    """The form's field of a setting whose column holds another form than people write."""
    if name not in SETTINGS:
        return None
    setting = SETTINGS[name]
    label = (setting.label or name.replace("_", " ")).capitalize()
    options: dict[str, Any] = {"label": label, "help_text": setting.help_text, "required": False}
    match setting.kind:
        case Money():
            return UsdField(min_value=0, max_digits=15, decimal_places=6, **options)
        case NeuronNames():
            widget = UnfoldAdminTextInputWidget()
            return ListField(separator=r"[,\s]", joint=", ", widget=widget, **options)
        case Targets():
            area = UnfoldAdminTextareaWidget({"rows": 3, "placeholder": "one a line"})
            return ListField(separator=r"\n", joint="\n", widget=area, **options)
        case _:
            return None


COMMON = ("source", "file", "enabled", "pinned", "quantization", "max_context_tokens")
"""The settings that a form shows at once."""


def fieldsets() -> Fieldsets:
    """A model's name and its common settings; the others by section, folded. A section with an
    error is open."""
    folded = {
        f"Advanced: {section.value or 'Offer'}": [
            name
            for name, setting in SETTINGS.items()
            if setting.section is section and name not in COMMON
        ]
        for section in Section
    }
    advanced = (
        (title, options | {"classes": ("collapse",)}) for title, options in sections(folded)
    )
    return (*sections({"": ("name", *COMMON)}), *advanced)
