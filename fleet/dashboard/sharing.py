"""The page that opens and closes the private Redis to invited hosts."""

from __future__ import annotations

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from fleet.admin.loading import actor_of
from fleet.errors import InvitationError
from fleet.services.hosts.invitations import (
    DEFAULT_SHARE_PORT,
    redis_share,
    redis_unshare,
    sharing_state,
)
from helexa_site.web.pages import render_page

SHARES = "fleet.change_fleetpolicy"


@never_cache
@require_http_methods(["GET", "POST"])
def sharing(request: HttpRequest) -> HttpResponse:
    if not request.user.has_perm(SHARES):
        raise PermissionDenied
    problem = ""
    if request.method == "POST":
        try:
            _do(request)
            return HttpResponseRedirect(reverse("sharing"))
        except InvitationError as error:
            problem = str(error)
    context = {
        "sharing": sharing_state(),
        "share_port": request.POST.get("port") or DEFAULT_SHARE_PORT,
        "problem": problem,
    }
    return render_page(
        request,
        "fleet/sharing.html",
        title="Sharing",
        context=context,
        status=400 if problem else 200,
    )


def _do(request: HttpRequest) -> None:
    if request.POST.get("do") == "close":
        redis_unshare(actor=actor_of(request))
        return
    port = request.POST.get("port", "")
    if not (port.isascii() and port.isdigit() and len(port) < 6):
        raise InvitationError(f"{port!r} is not a port")
    redis_share(actor=actor_of(request), host=request.POST.get("host", ""), port=int(port))
