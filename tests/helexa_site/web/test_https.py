"""Behind a proxy with TLS: cookies, HSTS, redirects, and whose word about the scheme counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import RequestFactory

from helexa_site.config import Config, read_config
from helexa_site.doctor.examine import settings_findings
from helexa_site.web import middleware
from helexa_site.web.hosts import allowed_hosts
from inference.settings.kinds import NETWORKS
from inference.settings.setting import SettingError
from tests.cases import each_case
from tests.helexa_site.processes import manage

PUBLIC = "https://chat.example.org"
PROXY = "10.1.0.7"


@pytest.fixture
def behind_tls(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Config:
    settings.ALLOWED_HOSTS = ["chat.example.org"]
    config = read_config({"HELEXA_PUBLIC_URL": PUBLIC, "HELEXA_TRUSTED_PROXIES": "10.1.0.0/16"})
    monkeypatch.setattr(middleware, "CONFIG", config)
    return config


def asked(config: Config, peer: str, forwarded: str | None, method: str = "GET") -> Any:
    """The request after the middleware, or its answer where it gives one."""
    headers = {} if forwarded is None else {"x-forwarded-proto": forwarded}
    request = RequestFactory(headers={"host": "chat.example.org", **headers}).generic(
        method, "/admin/?a=b", REMOTE_ADDR=peer
    )
    answer = middleware.HttpsMiddleware(lambda _: HttpResponse()).process_request(request)
    return request if answer is None else answer


@each_case(
    ("peer", "forwarded", "is_secure"),
    [
        (PROXY, "https", True),
        (PROXY, "https, http", True),
        (PROXY, None, False),
        ("192.0.2.1", "https", False),
        ("127.0.0.1", "https", False),
        ("", "https", False),
    ],
)
def test_only_a_trusted_proxys_https_header_counts(
    behind_tls: Config, peer: str, forwarded: str | None, is_secure: bool
) -> None:
    assert asked(behind_tls, peer, forwarded).is_secure() is is_secure


@each_case("method", ["GET", "POST"])
def test_what_came_by_http_through_the_proxy_is_sent_to_https(
    behind_tls: Config, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    answer = asked(behind_tls, PROXY, "http", method)
    assert (answer.status_code, answer.headers["location"]) == (308, f"{PUBLIC}/admin/?a=b")
    for peer in ("127.0.0.1", "192.0.2.1"):
        assert not hasattr(asked(behind_tls, peer, "http"), "status_code"), "commands speak HTTP"
    monkeypatch.setattr(middleware, "CONFIG", replace(behind_tls, redirects_to_https=False))
    assert not hasattr(asked(behind_tls, PROXY, "http"), "status_code"), "it is turned off"


@each_case(
    ("variables", "secure", "redirects", "hsts_s"),
    [
        ({}, False, False, 0),
        ({"HELEXA_PUBLIC_URL": "http://box.lan:31313"}, False, False, 0),
        ({"HELEXA_PUBLIC_URL": PUBLIC}, True, True, 30 * 24 * 3600),
        (
            {
                "HELEXA_PUBLIC_URL": PUBLIC,
                "HELEXA_SECURE_COOKIES": "0",
                "HELEXA_HTTPS_REDIRECT": "0",
                "HELEXA_HSTS_S": "0",
            },
            False,
            False,
            0,
        ),
        ({"HELEXA_SECURE_COOKIES": "1", "HELEXA_HSTS_S": "60"}, True, False, 60),
    ],
)
def test_defaults_follow_from_the_public_address(
    variables: dict[str, str], secure: bool, redirects: bool, hsts_s: int
) -> None:
    config = read_config(variables)
    assert (config.has_secure_cookies, config.redirects_to_https) == (secure, redirects)
    assert config.hsts_s == hsts_s


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
