"""``/usage/keys``: members make keys, copy each once, limit and revoke them."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods, require_POST

from fleet.admin.unfold_types import CheckedForm
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


class KeyRowForm(CheckedForm):
    model_names = forms.MultipleChoiceField(
        required=False, label="Models", help_text="None chosen: all of them."
    )

    def __init__(self, *args: Any, **options: Any) -> None:
        """A key keeps models that have left the catalogue until they are taken from it."""
        super().__init__(*args, **options)
        names = sorted({*nameable_models(), *self.instance.model_names})
        self.field("model_names").choices = [(name, name) for name in names]

    def field(self, name: str) -> Any:
        return self.fields[name]

    def check_row(self) -> None:
        services.key_check(key=self.instance)


class KeyForm(KeyRowForm):
    expires_at = forms.DateField(
        required=False,
        label="Expires",
        widget=forms.DateInput(attrs={"type": "date"}),
        help_text="At the end of that day in UTC; empty: never.",
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

    class Meta:
        model = ApiKey
        fields = ("account", "name", "model_names", "expires_at", *LIMIT_FIELDS)

    def __init__(self, data: Any, *, reader: Reader, key: ApiKey | None = None) -> None:
        expires_at = key and key.expires_at and key.expires_at.astimezone(UTC).date()
        row = key or ApiKey(scopes=services.DEFAULT_SCOPES)
        super().__init__(data, instance=row, initial={"expires_at": expires_at})
        self.field("name").help_text = "What it is for."
        self.field("account").queryset = Account.objects.filter(name__in=reader.key_accounts)
        self.field("account").empty_label = None
        if key is not None:
            for name in ("account", "cap", "unit", "window"):
                del self.fields[name]
        for field in self.fields.values():
            field.widget.attrs.setdefault("class", "hx-input")

    def clean_expires_at(self) -> Any:
        day = self.cleaned_data["expires_at"]
        if "expires_at" not in self.changed_data:
            return self.instance.expires_at
        return day and datetime(day.year, day.month, day.day, 23, 59, 59, tzinfo=UTC)

    def check_row(self) -> None:
        super().check_row()
        for cap in self.caps():
            services.budget_check(budget=cap)

    def caps(self) -> list[Budget]:
        word, unit, window = (self.cleaned_data.get(name, "") for name in ("cap", "unit", "window"))
        if not word:
            return []
        try:
            cap = cap_of(unit, word.replace(",", ""))
        except ValueError as error:
            raise MeteringValueError("cap", str(error)) from None
        return [Budget(key=self.instance, unit=unit, cap=cap, window=window)]


TRAIL = [("usage-keys", "My keys")]


@for_members
@require_http_methods(["GET", "POST"])
def keys_page(request: HttpRequest, reader: Reader) -> HttpResponse:
    form = KeyForm(request.POST or None, reader=reader)
    if form.is_valid():
        columns = {name: form.cleaned_data[name] for name in KeyForm.Meta.fields}
        made = services.key_create(actor=reader.actor, caps=form.caps(), **columns)
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
    title = str(key)  # the form writes into the row also what is refused
    form = KeyForm(request.POST or None, reader=reader, key=key)
    if key.revoked_at is None and form.is_valid():
        services.key_update(actor=reader.actor, key=key, changed_fields=form.changed_data)
        messages.success(request, f"Changed {key}")
        return redirect("usage-keys")
    context = {"trail": TRAIL, "key": key, "status": key_status(key), "form": form}
    return render_page(request, "metering/my_key.html", title=title, context=context)


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
