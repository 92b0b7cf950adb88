"""The page, and who asks by it."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from helexa_site.web.pages import render_page
from inference.gateway.request.identify import Login
from inference.wire.errors import ForbiddenError, ServiceUnavailableError
from metering.errors import DirectoryUnavailableError, DisabledAccountError
from metering.playground.accounts import accounts_for, playground_principal
from metering.playground.login import FOUND
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
def identify(request: HttpRequest, reader: Reader) -> HttpResponse:
    """Asked by ``metering.playground.login`` alone, which reads the ``Login`` and no answer.
    ``?account=`` names who pays."""
    found: list[Login] | None = getattr(request, "scope", {}).get(FOUND)
    if found is not None:
        found.append(_login(reader, request.GET.get("account", "")))
    return HttpResponse(status=204)


def _login(reader: Reader, account: str) -> Login:
    problem = f"You cannot ask from the budget of the account {account!r}."
    if account in accounts_for(reader):
        try:
            principal = playground_principal(account)
        except DisabledAccountError as error:
            problem = str(error)
        except DirectoryUnavailableError as error:
            return Login(refusal=ServiceUnavailableError("database_unavailable", str(error)))
        else:
            return Login(principal=principal, username=reader.username)
    return Login(refusal=ForbiddenError("account_not_allowed", problem, param="account"))
