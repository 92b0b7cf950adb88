"""The admin's style sheets and scripts, as a fresh machine serves them."""

from __future__ import annotations

import warnings
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from whitenoise.middleware import WhiteNoiseMiddleware


def _not_static(request: HttpRequest) -> HttpResponse:
    return HttpResponse(status=404)


def test_they_come_from_their_packages_and_nothing_is_missed(settings: Any) -> None:
    settings.WHITENOISE_AUTOREFRESH = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        middleware = WhiteNoiseMiddleware(_not_static)
    response = middleware(RequestFactory().get("/static/admin/css/base.css"))
    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith("text/css")
