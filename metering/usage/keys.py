"""``/usage/keys``: members make keys, copy each once, limit and revoke them."""

from __future__ import annotations

import time

from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods, require_POST

from helexa_site.web.pages import render_page
from inference.gateway.request.identify import allows_anonymous
from metering import selectors, services
from metering.errors import MeteringValueError
from metering.keys.status import key_status
from metering.models import Account, ApiKey
from metering.playground.accounts import is_playground_key
from metering.usage.key_forms import KeyForm
from metering.usage.reader import Reader, for_members

SHOWN_ONCE = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}


@for_members
@require_http_methods(["GET", "POST"])
def keys_page(request: HttpRequest, reader: Reader) -> HttpResponse:
    """The list, and the form of a new one. Its POST answers with the key, which nothing keeps."""
    form = KeyForm(request.POST or None, reader=reader)
    if request.method == "POST" and form.is_valid():
        try:
            made = _create(reader, form)
        except MeteringValueError as error:
            form.add_error(error.field if error.field in form.fields else None, str(error))
        else:
            context = {"key": made.row, "shown_once": made.key}
            response = render_page(
                request, "metering/my_key_created.html", title="A new API key", context=context
            )
            for name, value in SHOWN_ONCE.items():
                response[name] = value
            return response
    keys = [key for key in reader.own_keys() if not is_playground_key(key)]
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
    """Changes a key's name, models, expiry and limits; a revoked key stays as it is."""
    key = _key(reader, prefix)
    form = KeyForm(request.POST or None, reader=reader, key=key)
    if request.method == "POST" and key.revoked_at is None and form.is_valid():
        try:
            _change(reader, key, form)
        except MeteringValueError as error:
            form.add_error(error.field if error.field in form.fields else None, str(error))
        else:
            messages.success(request, f"Changed {key}")
            return redirect("usage-keys")
    context = {"key": key, "status": key_status(key), "form": form}
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
    """Raises ``MeteringValueError``."""
    return services.key_create(
        actor=reader.actor,
        account=Account.objects.get(name=form.cleaned_data["account"]),
        name=form.cleaned_data["name"],
        model_names=form.cleaned_data["model_names"],
        expires_at=form.expires_at(),
        limits=form.limits(),
        caps=form.caps(),
    )


def _change(reader: Reader, key: ApiKey, form: KeyForm) -> None:
    """Raises ``MeteringValueError``."""
    changed = ["expires_at" if name == "expires" else name for name in form.changed_data]
    values = {**form.cleaned_data, "expires_at": form.expires_at()}
    for name in changed:
        setattr(key, name, values[name])
    services.key_update(actor=reader.actor, key=key, changed_fields=changed)
