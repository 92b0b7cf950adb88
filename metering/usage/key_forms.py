"""The form by which members make a key and change its limits."""

from __future__ import annotations

from datetime import UTC, datetime, time
from typing import Any

from django import forms

from fleet.selectors import nameable_models
from metering.models import ApiKey
from metering.money import cap_of
from metering.principal import LIMIT_FIELDS, RateLimits
from metering.services import Cap
from metering.usage.reader import Reader


class KeyForm(forms.Form):
    """``account`` and the cap are asked for when a key is made, and stay."""

    account = forms.ChoiceField()
    name = forms.CharField(required=False, max_length=100, help_text="What it is for.")
    model_names = forms.MultipleChoiceField(
        required=False, label="Models", help_text="None chosen: all of them."
    )
    expires = forms.DateField(
        required=False,
        label="Expires",
        widget=forms.DateInput(attrs={"type": "date"}),
        help_text="At the end of that day in UTC; empty: never.",
    )
    requests_per_minute = forms.IntegerField(required=False, min_value=1, max_value=2**31 - 1)
    tokens_per_minute = forms.IntegerField(required=False, min_value=1, max_value=2**31 - 1)
    max_concurrent = forms.IntegerField(
        required=False, min_value=1, max_value=2**31 - 1, label="Requests at once"
    )
    cap = forms.CharField(
        required=False, label="Budget", help_text="US dollars as in 12.50, or tokens; empty: none."
    )
    unit = forms.ChoiceField(
        label="Budget in", choices=[("micro_usd", "US dollars"), ("tokens", "tokens")]
    )
    window = forms.ChoiceField(
        label="Budget for",
        choices=[("balance", "once"), ("day", "each day"), ("month", "each month")],
    )

    def __init__(self, *args: Any, reader: Reader, key: ApiKey | None = None, **kw: Any) -> None:
        """``key``: the one that is changed, ``None`` for a new one."""
        kw["initial"] = {} if key is None else _initial(key)
        super().__init__(*args, **kw)
        names = sorted({*nameable_models(), *(key.model_names if key else ())})
        self._field("model_names").choices = [(name, name) for name in names]
        if key is None:
            self._field("account").choices = [(name, name) for name in reader.key_accounts]
        else:
            for name in ("account", "cap", "unit", "window"):
                del self.fields[name]
        for field in self.fields.values():
            field.widget.attrs.setdefault("class", "hx-input")

    def clean_cap(self) -> str:
        word: str = self.cleaned_data["cap"].replace(",", "").strip()
        if word:
            try:
                cap_of(self.data.get("unit", ""), word)
            except ValueError as error:
                raise forms.ValidationError(str(error)) from None
        return word

    def expires_at(self) -> datetime | None:
        day = self.cleaned_data["expires"]
        return None if day is None else datetime.combine(day, time(23, 59, 59), UTC)

    def limits(self) -> RateLimits:
        return RateLimits.of(self.cleaned_data)

    def caps(self) -> list[Cap]:
        word, unit = self.cleaned_data["cap"], self.cleaned_data["unit"]
        if not word:
            return []
        return [Cap(unit=unit, cap=cap_of(unit, word), window=self.cleaned_data["window"])]

    def _field(self, name: str) -> Any:
        return self.fields[name]


def _initial(key: ApiKey) -> dict[str, Any]:
    return {
        "name": key.name,
        "model_names": key.model_names,
        "expires": key.expires_at.astimezone(UTC).date() if key.expires_at else None,
        **{name: getattr(key, name) for name in LIMIT_FIELDS},
    }
