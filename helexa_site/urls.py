"""Django's own paths: the operator's console and the REST API."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path, re_path

from fleet.api.overview import VersionView
from helexa_site.api_reference import api_reference
from helexa_site.logins import Login, Logout
from helexa_site.pages import favicon, front, settings_page

# Imported here and not when Django is set up: most processes and commands have no pages, and these
# are half of all imports.
admin.autodiscover()

handler400 = "helexa_site.pages.page_bad_request"
handler403 = "helexa_site.pages.page_forbidden"
handler404 = "helexa_site.pages.page_not_found"
handler500 = "helexa_site.pages.page_failed"

urlpatterns = [
    path("admin/dashboard/", include("fleet.dashboard.urls")),
    path("admin/settings/", admin.site.admin_view(settings_page), name="settings"),
    path("admin/", admin.site.urls),
    path("", include("helexa_site.api_urls")),
    path("login/", Login.as_view(), name="login"),
    path("logout/", Logout.as_view(), name="logout"),
    path("", include("metering.urls")),
    path("bench/", include("metering.bench.pages")),
    path("favicon.ico", favicon),
    path("", front, name="front"),
    path("version", VersionView.as_view()),
    re_path(r"^docs/?$", api_reference, name="api-reference"),
]
