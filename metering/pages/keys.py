"""``/usage/keys``: members make keys, copy each once, limit and revoke them."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from django import forms
from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods, require_POST

from fleet.selectors import nameable_models
from helexa_site.pages import SHOWN_ONCE, render_page
from inference.gateway.request.identify import allows_anonymous
from metering import selectors, services
from metering.errors import MeteringValueError
from metering.models import Account, ApiKey, Budget
from metering.money import cap_of
from metering.pages import Reader, for_members
from metering.principal import LIMIT_FIELDS
from metering.selectors import key_status

Written = TypeVar("Written")


class KeyForm(forms.Form):
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

    def written(self, write: Callable[[], Written]) -> Written | None:
        """``None``: it is refused, with the reasons at its fields."""
        if self.is_valid():
            try:
                return write()
            except MeteringValueError as error:
                self.add_error(error.field if error.field in self.fields else None, str(error))
        return None

    def expires_at(self) -> datetime | None:
        day = self.cleaned_data["expires"]
        if day is None:
            return None
        return datetime(day.year, day.month, day.day, 23, 59, 59, tzinfo=UTC)

    def caps(self) -> list[Budget]:
        word, unit = self.cleaned_data["cap"], self.cleaned_data["unit"]
        if not word:
            return []
        return [Budget(unit=unit, cap=cap_of(unit, word), window=self.cleaned_data["window"])]

    def _field(self, name: str) -> Any:
        return self.fields[name]


def _initial(key: ApiKey) -> dict[str, Any]:
    return {
        "name": key.name,
        "model_names": key.model_names,
        "expires": key.expires_at.astimezone(UTC).date() if key.expires_at else None,
        **{name: getattr(key, name) for name in LIMIT_FIELDS},
    }


TRAIL = [("usage-keys", "My keys")]


@for_members
@require_http_methods(["GET", "POST"])
def keys_page(request: HttpRequest, reader: Reader) -> HttpResponse:
    form = KeyForm(request.POST or None, reader=reader)
    if request.method == "POST" and (made := form.written(lambda: _create(reader, form))):
        return render_page(
            request,
            "metering/key_created.html",
            title="A new API key",
            context={"trail": TRAIL, "key": made.row, "shown_once": made.key},
            headers=SHOWN_ONCE,
        )
    keys = reader.own_keys()
    budgets = selectors.budgets_by_key(keys=[key.prefix for key in keys], now_unix_s=time.time())
    context = {
        "reader": reader,
        "form": form,
        "is_open": allows_anonymous(settings.CONFIG),
        "keys": [
            (key, key_status(key), selectors.left_words(budgets.get(key.prefix, ())))
            for key in keys
        ],
    }
    return render_page(request, "metering/my_keys.html", title="My keys", context=context)


@for_members
@require_http_methods(["GET", "POST"])
def key_page(request: HttpRequest, reader: Reader, prefix: str) -> HttpResponse:
    key = _key(reader, prefix)
    form = KeyForm(request.POST or None, reader=reader, key=key)
    changed = None
    if request.method == "POST" and key.revoked_at is None:
        changed = form.written(lambda: _change(reader, key, form))
    if changed is not None:
        messages.success(request, f"Changed {key}")
        return redirect("usage-keys")
    context = {"trail": TRAIL, "key": key, "status": key_status(key), "form": form}
    return render_page(request, "metering/my_key.html", title=str(key), context=context)


@for_members
@require_POST
def key_revoke(request: HttpRequest, reader: Reader, prefix: str) -> HttpResponse:
    key = _key(reader, prefix)
    if services.key_revoke(actor=reader.actor, key=key):
        messages.success(request, f"Revoked {key}")
    else:
        messages.info(request, f"{key} was revoked already")
    return redirect("usage-keys")


def _key(reader: Reader, prefix: str) -> ApiKey:
    """Raises ``Http404``, also for another user's key: no user can probe which keys exist."""
    key = ApiKey.objects.filter(prefix=prefix).first()
    if key is None or not reader.may_change(key):
        raise Http404
    return key


def _create(reader: Reader, form: KeyForm) -> services.CreatedKey:
    return services.key_create(
        actor=reader.actor,
        account=Account.objects.get(name=form.cleaned_data["account"]),
        name=form.cleaned_data["name"],
        model_names=form.cleaned_data["model_names"],
        expires_at=form.expires_at(),
        **{name: form.cleaned_data[name] for name in LIMIT_FIELDS},
        caps=form.caps(),
    )


def _change(reader: Reader, key: ApiKey, form: KeyForm) -> ApiKey:
    changed = ["expires_at" if name == "expires" else name for name in form.changed_data]
    values = {**form.cleaned_data, "expires_at": form.expires_at()}
    for name in changed:
        setattr(key, name, values[name])
    services.key_update(actor=reader.actor, key=key, changed_fields=changed)
    return key
