"""Behind a proxy with TLS: cookies, HSTS, redirects, and whose word about the scheme counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import RequestFactory

from helexa_site.config import read_config
from helexa_site.doctor.examine import settings_findings
from helexa_site.web import middleware
from helexa_site.web.hosts import allowed_hosts
from inference.settings.kinds import NETWORKS
from inference.settings.setting import SettingError
from tests.cases import each_case
from tests.helexa_site.processes import manage

PUBLIC = "https://chat.example.org"
PROXY = "10.1.0.7"


@each_case(
    ("peer", "forwarded", "came_of_it"),
    [
        (PROXY, "https", "secure"),
        (PROXY, "https, http", "secure"),
        (PROXY, "http", "redirected"),
        (PROXY, None, "plain"),
        ("192.0.2.1", "https", "plain"),
        ("127.0.0.1", "http", "plain"),  # commands speak HTTP
        ("", "https", "plain"),
    ],
)
def test_only_a_trusted_proxys_header_counts(
    monkeypatch: pytest.MonkeyPatch,
    settings: Any,
    peer: str,
    forwarded: str | None,
    came_of_it: str,
) -> None:
    settings.ALLOWED_HOSTS = ["chat.example.org"]
    config = read_config({"HELEXA_PUBLIC_URL": PUBLIC, "HELEXA_TRUSTED_PROXIES": "10.1.0.0/16"})
    headers = {} if forwarded is None else {"x-forwarded-proto": forwarded}
    factory = RequestFactory(headers={"host": "chat.example.org", **headers})

    def asked(method: str = "POST", *, redirects: bool = True) -> Any:
        """The request after the middleware, or its answer where it gives one."""
        monkeypatch.setattr(middleware, "CONFIG", replace(config, redirects_to_https=redirects))
        request = factory.generic(method, "/admin/?a=b", REMOTE_ADDR=peer)
        answer = middleware.HttpsMiddleware(lambda _: HttpResponse()).process_request(request)
        return request if answer is None else answer

    if came_of_it == "redirected":
        answer = asked()
        assert (answer.status_code, answer.headers["location"]) == (308, f"{PUBLIC}/admin/?a=b")
        assert not hasattr(asked(redirects=False), "status_code"), "it is turned off"
    else:
        assert asked("GET").is_secure() is (came_of_it == "secure")


OFF = {"HELEXA_SECURE_COOKIES": "0", "HELEXA_HTTPS_REDIRECT": "0", "HELEXA_HSTS_S": "0"}


@each_case(
    ("variables", "expected"),
    [
        ({"HELEXA_PUBLIC_URL": "http://box.lan:31313"}, (False, False, 0)),
        ({"HELEXA_PUBLIC_URL": PUBLIC}, (True, True, 30 * 24 * 3600)),
        ({"HELEXA_PUBLIC_URL": PUBLIC, **OFF}, (False, False, 0)),
        ({"HELEXA_SECURE_COOKIES": "1", "HELEXA_HSTS_S": "60"}, (True, False, 60)),
    ],
)
def test_defaults_follow_from_the_public_address(
    variables: dict[str, str], expected: tuple[bool, bool, int]
) -> None:
    config = read_config(variables)
    assert (config.has_secure_cookies, config.redirects_to_https, config.hsts_s) == expected


def test_the_public_address_is_a_name_of_this_server_and_its_forms_are_accepted() -> None:
    config = read_config({"HELEXA_PUBLIC_URL": f"{PUBLIC}:8443/"})
    assert config.public_url == f"{PUBLIC}:8443"
    assert config.csrf_trusted_origins == (f"{PUBLIC}:8443",)
    assert "chat.example.org" in allowed_hosts(config)
    for wrong in ("chat.example.org", f"{PUBLIC}/path", "ftp://chat.example.org", "https://*"):
        with pytest.raises(SettingError, match="HELEXA_PUBLIC_URL"):
            read_config({"HELEXA_PUBLIC_URL": wrong})


def test_the_doctor_misses_the_proxy() -> None:
    unnamed = read_config({"HELEXA_PUBLIC_URL": PUBLIC})
    (finding,) = settings_findings(unnamed, {})
    assert "HELEXA_TRUSTED_PROXIES" in finding.mend
    named = replace(unnamed, trusted_proxies=NETWORKS.parse(PROXY))
    assert all("HELEXA_TRUSTED_PROXIES" not in one.mend for one in settings_findings(named, {}))


def test_djangos_deployment_check_finds_nothing_behind_tls(tmp_path: Path) -> None:
    """Neither in cookies nor in HSTS."""
    done = manage(
        *("check", "--deploy", "--tag", "security", "--fail-level", "WARNING"),
        HELEXA_DATA_DIR=str(tmp_path),
        HELEXA_PUBLIC_URL=PUBLIC,
        HELEXA_TRUSTED_PROXIES=PROXY,
    )
    assert done.returncode == 0, done.stderr
    assert "System check identified no issues" in done.stdout
