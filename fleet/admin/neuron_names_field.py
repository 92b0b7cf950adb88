"""A form's field for names of neurons: people write them with commas or spaces between."""

from __future__ import annotations

from typing import Any

from django import forms
from unfold.widgets import UnfoldAdminTextInputWidget


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
