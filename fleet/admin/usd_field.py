"""A form's field for an amount of money: people write decimal USD, the row holds micro-USD."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from unfold.widgets import UnfoldAdminDecimalFieldWidget

from metering.money import micro_usd_of, usd_digits

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
        """Micro-USD of the row, or the user's input."""
        if not isinstance(value, int):
            return value
        return usd_digits(value)

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            return bool(self.clean(data) != initial)
        except ValidationError:
            return True
