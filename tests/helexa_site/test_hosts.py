"""Names by which the server may be asked, and what proxies with TLS change: a client's address,
cookies, HSTS, redirects; its own pages and static files: the API reference, errors, settings."""

from __future__ import annotations

import gzip
import html
import logging
import re
import socket
from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from django.core.exceptions import BadRequest, PermissionDenied
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory, override_settings
from django.urls import path

from helexa_site import middleware, pages, urls
from helexa_site.addresses import client_address, counted_address
from helexa_site.bootstrap.arguments import gateway_host
from helexa_site.config import Config, read_config
from helexa_site.doctor import settings_findings
from helexa_site.middleware import HEADER, POLICY, allowed_hosts, host_is_allowed, policy_text
from inference.settings.gateway import ALLOWED_HOSTS
from inference.settings.setting import SettingError
from inference.settings.table import SETTINGS
from inference.wire.openapi import document
from tests.cases import each_case
from tests.helexa_site.processes import manage
from tests.metering.callers import person, staff

LOOPBACK = ("localhost", "localhost:31313", "chat.localhost", "127.0.0.1:1", "[::1]:31313", "[::1]")
ELSEWHERE = ("evil.example:31313", "localhost.evil.example", "127.0.0.1.evil", "a b", "a/b", ":80")
OWN_NAME = socket.gethostname()


@pytest.fixture
def config() -> Config:
    return replace(read_config(), allowed_hosts=(), listen_host="127.0.0.1")


def test_loopback_names_always_and_others_never(
    config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    for listen_host in (None, "127.0.0.1", "0.0.0.0", "192.0.2.7", "box"):
        listening = replace(config, listen_host=listen_host)
        assert all(host_is_allowed(listening, host) for host in LOOPBACK)
        assert not any(host_is_allowed(listening, host) for host in ELSEWHERE)
        assert host_is_allowed(listening, ""), "one without a host comes from no browser"
    assert gateway_host(["--port", "1", "--host", "0.0.0.0"]) == "0.0.0.0"
    assert gateway_host(["--host=::"]) == "::"
    assert gateway_host([]) == gateway_host(["--host"]) == "127.0.0.1"
    caplog.set_level(logging.WARNING)
    with override_settings(ALLOWED_HOSTS=sorted(allowed_hosts(config))):
        assert Client(headers={"host": "evil.example:31313"}).get("/").status_code == 400
    assert "HELEXA_ALLOWED_HOSTS" in caplog.text and "evil.example:31313" in caplog.text


@each_case(
    ("given", "asked"),
    [
        ({"listen_host": "192.0.2.7"}, "192.0.2.7:31313"),
        ({"listen_host": "2001:db8:0::7"}, "[2001:db8::7]:31313"),
        ({"listen_host": "Box.example.org"}, "box.EXAMPLE.org"),
        ({"listen_host": "0.0.0.0"}, f"{OWN_NAME}:31313"),
        ({"public_url": "http://helexa_gateway:8000"}, "helexa_gateway:8000"),
        ({"allowed_hosts": "Helexa_Gateway"}, "helexa_gateway."),
        ({"allowed_hosts": "chat.example.org."}, "chat.example.org.:80"),
        ({"allowed_hosts": ".my_net"}, "a_b.my_net"),
        ({"allowed_hosts": "-a-"}, "-a-:1"),
        ({"allowed_hosts": "[2001:DB8::7]"}, "[2001:db8::7]:31313"),
        ({"allowed_hosts": "*"}, "any_name:1"),
    ],
)
def test_what_it_listens_on_and_what_the_operator_names(
    config: Config, given: dict[str, Any], asked: str
) -> None:
    assert not host_is_allowed(config, asked) or OWN_NAME == "localhost"
    if named := given.get("allowed_hosts"):
        given = {"allowed_hosts": ALLOWED_HOSTS.read({"HELEXA_ALLOWED_HOSTS": named})}
    config = replace(config, **given)
    assert host_is_allowed(config, asked)
    with override_settings(ALLOWED_HOSTS=sorted(allowed_hosts(config))):
        assert Client(headers={"host": asked}).get("/").status_code == 302
    for other in ("other_name", "example.org", "helexa_gateway.evil.example", "é"):
        assert named == "*" or not host_is_allowed(config, other)


def test_the_machines_own_addresses_on_a_wildcard(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = [(socket.AF_INET, "192.0.2.9"), (socket.AF_INET6, "fe80::1%eth0")]
    own.append((psutil.AF_LINK, "00:11:22:33:44:55"))
    addresses = [SimpleNamespace(family=family, address=address) for family, address in own]
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth0": addresses})
    allowed_hosts.cache_clear()
    try:
        for listen_host, host, is_allowed in (
            *(("::", host, True) for host in ("192.0.2.9:31313", "[fe80::1]:31313")),
            *(("::", "192.0.2.10", False), ("192.0.2.1", "192.0.2.9", False)),
        ):
            listening = replace(config, listen_host=listen_host)
            assert host_is_allowed(listening, host) is is_allowed, host
    finally:
        allowed_hosts.cache_clear()


PROXIES = tuple(ip_network(word) for word in ("10.0.0.0/8", "127.0.0.1", "fd00::/8"))


def test_the_first_from_the_right_that_is_no_proxy() -> None:
    for peer, forwarded_for, address in (
        ("192.0.2.1", "198.51.100.7", "192.0.2.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "203.0.113.5, 198.51.100.7", "198.51.100.7"),
        ("10.0.0.1", "10.1.1.1, 198.51.100.7 , 10.2.2.2", "198.51.100.7"),
        ("127.0.0.1", "10.1.1.1,10.2.2.2", "10.1.1.1"),
        ("10.0.0.1", "198.51.100.7, unknown, 10.2.2.2", "10.2.2.2"),
        ("10.0.0.1", ",,", "10.0.0.1"),
        ("10.0.0.1", "198.51.100.7:4711", "198.51.100.7"),
        ("10.0.0.1", "[2001:db8::7]:4711", "2001:db8::7"),
        ("::ffff:10.0.0.1", "::ffff:198.51.100.7", "198.51.100.7"),
        ("fd00::1", "2001:db8::7", "2001:db8::7"),
        ("", "198.51.100.7", "::"),
    ):
        assert client_address(peer, forwarded_for, ()) == client_address(peer, "", PROXIES)
        found = client_address(peer, forwarded_for, PROXIES)
        assert found == ip_address(address), (peer, forwarded_for)
    counted = {"192.0.2.1": "192.0.2.1", "2001:db8:1:2:ffff::1": "2001:db8:1:2::"}
    for one, expected in (counted | {"fe80::1%eth0": "fe80::"}).items():
        assert counted_address(ip_address(one)) == expected, "one address or one IPv6 network"


PUBLIC = "https://chat.example.org"
PROXY = "10.1.0.7"


def test_only_a_trusted_proxys_header_counts(settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["chat.example.org"]
    config = read_config({"HELEXA_PUBLIC_URL": PUBLIC, "HELEXA_TRUSTED_PROXIES": "10.1.0.0/16"})

    def asked(peer: str, forwarded: str | None, method: str, *, redirects: bool = True) -> Any:
        """The request after the middleware, or its answer where it gives one."""
        headers = {} if forwarded is None else {"x-forwarded-proto": forwarded}
        factory = RequestFactory(headers={"host": "chat.example.org", **headers})
        settings.CONFIG = replace(config, redirects_to_https=redirects)
        request = factory.generic(method, "/admin/?a=b", REMOTE_ADDR=peer)
        answer = middleware.HttpsMiddleware(lambda _: HttpResponse()).process_request(request)
        return request if answer is None else answer

    for peer, forwarded, is_secure in (
        (PROXY, "https", True),
        (PROXY, "https, http", True),
        (PROXY, None, False),
        ("192.0.2.1", "https", False),
        ("127.0.0.1", "http", False),  # commands speak HTTP
        ("", "https", False),
    ):
        assert asked(peer, forwarded, "GET").is_secure() is is_secure, (peer, forwarded)
    answer = asked(PROXY, "http", "POST")
    assert (answer.status_code, answer.headers["location"]) == (308, f"{PUBLIC}/admin/?a=b")
    off = asked(PROXY, "http", "POST", redirects=False)
    assert not hasattr(off, "status_code"), "it is turned off"


def test_the_public_address_is_a_name_of_this_server_and_defaults_follow_from_it() -> None:
    off = {"HELEXA_SECURE_COOKIES": "0", "HELEXA_HTTPS_REDIRECT": "0", "HELEXA_HSTS_S": "0"}
    for variables, expected in (
        ({"HELEXA_PUBLIC_URL": "http://box.lan:31313"}, (False, False, 0)),
        ({"HELEXA_PUBLIC_URL": PUBLIC}, (True, True, 30 * 24 * 3600)),
        ({"HELEXA_PUBLIC_URL": PUBLIC, **off}, (False, False, 0)),
        ({"HELEXA_SECURE_COOKIES": "1", "HELEXA_HSTS_S": "60"}, (True, False, 60)),
    ):
        config = read_config(variables)
        found = (config.has_secure_cookies, config.redirects_to_https, config.hsts_s)
        assert found == expected
    config = read_config({"HELEXA_PUBLIC_URL": f"{PUBLIC}:8443/"})
    assert config.public_url == f"{PUBLIC}:8443"
    assert config.csrf_trusted_origins == (f"{PUBLIC}:8443",)
    assert "chat.example.org" in allowed_hosts(config)
    for wrong in ("chat.example.org", f"{PUBLIC}/path", "ftp://chat.example.org", "https://*"):
        with pytest.raises(SettingError, match="HELEXA_PUBLIC_URL"):
            read_config({"HELEXA_PUBLIC_URL": wrong})
    named = read_config({"HELEXA_PUBLIC_URL": PUBLIC, "HELEXA_TRUSTED_PROXIES": PROXY})
    (finding,) = settings_findings(config, {})
    assert "HELEXA_TRUSTED_PROXIES" in finding.mend
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


PAGE = "text/html,application/xhtml+xml,*/*;q=0.8"


def failing(_request: HttpRequest, error: Exception) -> HttpResponse:
    raise error


urlpatterns = [
    *urls.urlpatterns,
    path("bad", failing, {"error": BadRequest("no")}),
    path("barred", failing, {"error": PermissionDenied("no")}),
    path("broken", failing, {"error": RuntimeError("a secret")}),
]
handler400, handler403 = urls.handler400, urls.handler403
handler404, handler500 = urls.handler404, urls.handler500


@pytest.mark.django_db
@pytest.mark.urls(__name__)
@each_case(
    ("address", "status", "words"),
    [
        ("/bad", 400, "This request cannot be read"),
        ("/barred", 403, "for people with other permissions"),
        ("/nowhere", 404, "There is nothing at this address"),
        ("/broken", 500, "The server failed."),
    ],
)
def test_a_refusal_and_a_failure(
    caplog: pytest.LogCaptureFixture, monkeypatch: Any, address: str, status: int, words: str
) -> None:
    client = Client(raise_request_exception=False)
    response = client.get(address, HTTP_ACCEPT=PAGE)
    assert response.status_code == status and words in response.text
    assert response["content-type"].startswith("text/html") and "x-request-id" not in response
    assert 'class="hx-skip"' in response.text and "a secret" not in response.text
    if status == 500:
        number = response.text.partition("under this number: ")[2][:32]
        assert len(number) == 32 and f"GET /broken failed: {number}" in caplog.text
    response = client.get(address, HTTP_ACCEPT="application/json")
    assert (response.status_code, response["content-type"]) == (status, "application/json")
    assert "a secret" not in response.text
    if status == 404:
        meant = client.post("/openai/v1/chat/completions", HTTP_ACCEPT="*/*").json()["error"]
        assert meant["code"] == "unknown_url"
        words_end = "Did you mean /v1/chat/completions? What there is: /docs."
        assert meant["message"].endswith(words_end)
    monkeypatch.setattr(pages, "render_page", Mock(side_effect=OperationalError("away")))
    response = client.get(address, HTTP_ACCEPT=PAGE)
    assert response.status_code == status
    assert words in response.text and "<h1>" in response.text, "also without the database"


@pytest.mark.django_db
def test_every_setting_is_shown_to_superusers_and_no_secret(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {one.name: "sesame-and-long-enough" for one in SETTINGS if one.is_secret}
    environment["HELEXA_MAX_IMAGES"] = "37"
    environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = "https://me:sesame@traces.example"
    monkeypatch.setattr(pages, "ENVIRONMENT", environment)
    text = html.unescape(admin_client.get("/admin/settings/").text)
    for setting in SETTINGS:
        assert (f"<code>{setting.name}</code>" in text) is not setting.is_internal
        assert setting.is_internal or setting.kind.rule in text
    assert '<td class="hx-words">37</td>' in text
    assert "sesame" not in text and "set, and not shown" in text
    assert "https://me:***@traces.example" in text
    assert "](" not in text and "`" not in text, "Markdown"
    refused = staff().get("/admin/settings/", headers={"accept": PAGE})
    assert refused.status_code == 403 and "for people with other permissions" in refused.text
    assert person("mia").get("/admin/settings/").status_code == 302


@pytest.mark.django_db
def test_no_page_runs_a_script_that_stands_in_it_or_comes_from_elsewhere() -> None:
    for address in ("/login/", "/nowhere", "/static/helexa/pages.css"):
        for host in ("localhost", "evil.example"):
            response = Client(headers={"host": host}).get(address)
            response.close()
            assert response.headers[HEADER] == policy_text()
    assert set(POLICY["script-src"]) == {"'self'", "'unsafe-eval'"}
    assert POLICY["default-src"] == ("'self'",), "connections among others"
    for directive in ("object-src", "base-uri", "frame-src", "frame-ancestors"):
        assert POLICY[directive] == ("'none'",)
    client = Client()
    assert 'href="/docs"' in client.get("/", follow=True).text
    for reader, where in ((staff(), "/admin/"), (person("mia"), "/playground/")):
        assert reader.get("/")["Location"] == where
    page = client.get("/docs/").text
    assert all(address in html.unescape(page) for address in document()["paths"])
    loaded = re.findall(r'<(?:script|link|img|iframe)[^>]*?(?:src|href)="([^"]*)"', page)
    assert loaded and [one for one in loaded if "//" in one] == [], "it needs no other host"
    targets = set(re.findall(r'href="#([^"]+)"', page))
    assert targets and targets <= set(re.findall(r'id="([^"]+)"', page))


@pytest.mark.django_db
def test_static_files_come_compressed_where_they_are_text() -> None:
    client = Client(headers={"accept-encoding": "gzip, br"})
    plain = b"".join(Client().get("/static/helexa/pages.css"))  # type: ignore[arg-type]
    response = client.get("/static/helexa/pages.css")
    assert response["Content-Encoding"] == "gzip" and "Accept-Encoding" in response["Vary"]
    packed = b"".join(response)  # type: ignore[arg-type]
    assert gzip.decompress(packed) == plain and len(packed) < len(plain) / 2
    font = client.get("/static/unfold/fonts/inter/Inter-Regular.woff2")
    part = client.get("/static/helexa/pages.css", headers={"range": "bytes=0-9"})
    for whole, status in ((font, 200), (part, 206), (Client().get("/docs"), 200)):
        assert (whole.status_code, "Content-Encoding" in whole) == (status, False)
    assert client.get("/docs")["Content-Encoding"] == "gzip"
