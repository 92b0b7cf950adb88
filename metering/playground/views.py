"""The page, and the key that its script asks for."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from helexa_site.pages import render_page
from metering.playground.keys import accounts_for, playground_key_create
from metering.usage.reader import Reader, for_members


@never_cache
@require_GET
@for_members
def playground(request: HttpRequest, reader: Reader) -> HttpResponse:
    settings = {
        "accounts": accounts_for(reader),
        "user": reader.username,
        "may_add_models": request.user.has_perm("fleet.add_cataloguemodel"),
        "base_url": request.build_absolute_uri("/").rstrip("/"),
    }
    context = {"settings": settings}
    return render_page(request, "playground/playground.html", title="Playground", context=context)


@never_cache
@for_members
@require_POST
def key(request: HttpRequest, reader: Reader) -> HttpResponse:
    """``account`` by form; the answer shows the key this once."""
    wanted = request.POST.get("account", "")
    if wanted not in accounts_for(reader):
        problem = f"You cannot ask from the budget of the account {wanted!r}"
        return JsonResponse({"error": problem}, status=403)
    created = playground_key_create(reader=reader, account_name=wanted)
    assert created.row.expires_at is not None, "it is short-lived"
    created_key = {"key": created.key, "expires_unix_s": int(created.row.expires_at.timestamp())}
    return JsonResponse(created_key, status=201)
