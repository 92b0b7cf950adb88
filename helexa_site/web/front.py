"""``/``: leads on by who asks."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.templatetags.static import static
from django.urls import reverse
from django.utils.cache import add_never_cache_headers


def front(request: HttpRequest) -> HttpResponse:
    """An operator to the dashboard, a member to the playground, a stranger to the log-in."""
    if not request.user.is_authenticated:
        found = reverse("login")
    elif request.user.is_staff:
        found = reverse("admin:index")
    else:
        found = reverse("playground")
    response = HttpResponseRedirect(found)
    add_never_cache_headers(response)
    return response


def favicon(_request: HttpRequest) -> HttpResponse:
    """What browsers ask for by themselves where a page names none."""
    return HttpResponseRedirect(static("helexa/favicon.svg"))
