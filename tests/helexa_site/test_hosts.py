"""Names by which the server may be asked, and what proxies with TLS change: a client's address,
cookies, HSTS, redirects."""

from __future__ import annotations

import logging
import socket
from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from django.http import HttpResponse
from django.test import Client, RequestFactory, override_settings

from helexa_site import middleware
from helexa_site.addresses import client_address, counted_address
from helexa_site.bootstrap.arguments import gateway_host
from helexa_site.config import Config, read_config
from helexa_site.doctor import settings_findings
from helexa_site.middleware import allowed_hosts, host_is_allowed
from inference.settings.gateway import ALLOWED_HOSTS
from inference.settings.setting import SettingError
from tests.cases import each_case
from tests.helexa_site.processes import manage

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
    addresses = [
        SimpleNamespace(family=socket.AF_INET, address="192.0.2.9"),
        SimpleNamespace(family=socket.AF_INET6, address="fe80::1%eth0"),
        SimpleNamespace(family=psutil.AF_LINK, address="00:11:22:33:44:55"),
    ]
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth0": addresses})
    allowed_hosts.cache_clear()
    wildcard = replace(config, listen_host="::")
    try:
        assert host_is_allowed(wildcard, "192.0.2.9:31313")
        assert host_is_allowed(wildcard, "[fe80::1]:31313")
        assert not host_is_allowed(wildcard, "192.0.2.10")
        assert not host_is_allowed(replace(config, listen_host="192.0.2.1"), "192.0.2.9")
    finally:
        allowed_hosts.cache_clear()


PROXIES = tuple(ip_network(word) for word in ("10.0.0.0/8", "127.0.0.1", "fd00::/8"))


@each_case(
    ("peer", "forwarded_for", "address"),
    [
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
    ],
)
def test_the_first_from_the_right_that_is_no_proxy(
    peer: str, forwarded_for: str, address: str
) -> None:
    assert client_address(peer, forwarded_for, ()) == client_address(peer, "", PROXIES)
    assert client_address(peer, forwarded_for, PROXIES) == ip_address(address)
    counted = {"192.0.2.1": "192.0.2.1", "2001:db8:1:2:ffff::1": "2001:db8:1:2::"}
    for one, expected in (counted | {"fe80::1%eth0": "fe80::"}).items():
        assert counted_address(ip_address(one)) == expected, "one address or one IPv6 network"


PUBLIC = "https://chat.example.org"
PROXY = "10.1.0.7"


@each_case(
    ("peer", "forwarded", "outcome"),
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
    settings: Any, peer: str, forwarded: str | None, outcome: str
) -> None:
    settings.ALLOWED_HOSTS = ["chat.example.org"]
    config = read_config({"HELEXA_PUBLIC_URL": PUBLIC, "HELEXA_TRUSTED_PROXIES": "10.1.0.0/16"})
    headers = {} if forwarded is None else {"x-forwarded-proto": forwarded}
    factory = RequestFactory(headers={"host": "chat.example.org", **headers})

    def asked(method: str = "POST", *, redirects: bool = True) -> Any:
        """The request after the middleware, or its answer where it gives one."""
        settings.CONFIG = replace(config, redirects_to_https=redirects)
        request = factory.generic(method, "/admin/?a=b", REMOTE_ADDR=peer)
        answer = middleware.HttpsMiddleware(lambda _: HttpResponse()).process_request(request)
        return request if answer is None else answer

    if outcome == "redirected":
        answer = asked()
        assert (answer.status_code, answer.headers["location"]) == (308, f"{PUBLIC}/admin/?a=b")
        assert not hasattr(asked(redirects=False), "status_code"), "it is turned off"
    else:
        assert asked("GET").is_secure() is (outcome == "secure")


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
