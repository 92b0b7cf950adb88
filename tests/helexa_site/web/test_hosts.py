"""Names by which the server may be asked, and which proxies' headers decide a client's address."""

from __future__ import annotations

import logging
import socket
from dataclasses import replace
from ipaddress import ip_address, ip_network
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from django.test import Client, override_settings

from helexa_site.bootstrap.arguments import gateway_host
from helexa_site.config import Config, read_config
from helexa_site.web.client_address import client_address, counted_address
from helexa_site.web.hosts import allowed_hosts, host_is_allowed
from inference.settings.gateway import ALLOWED_HOSTS
from tests.cases import each_case

LOOPBACK = ("localhost", "localhost:31313", "chat.localhost", "127.0.0.1:1", "[::1]:31313", "[::1]")
ELSEWHERE = ("evil.example:31313", "localhost.evil.example", "127.0.0.1.evil", "a b", "a/b", ":80")
OWN_NAME = socket.gethostname()


@pytest.fixture
def config() -> Config:
    return replace(read_config(), allowed_hosts=(), listen_host="127.0.0.1")


@each_case("listen_host", [None, "127.0.0.1", "0.0.0.0", "192.0.2.7", "box"])
def test_loopback_names_always_and_others_never(config: Config, listen_host: str | None) -> None:
    config = replace(config, listen_host=listen_host)
    assert all(host_is_allowed(config, host) for host in LOOPBACK)
    assert not any(host_is_allowed(config, host) for host in ELSEWHERE)
    assert host_is_allowed(config, ""), "a request without a host comes from no browser"


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


def test_djangos_pages_refuse_and_the_log_names_the_setting(
    config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with override_settings(ALLOWED_HOSTS=sorted(allowed_hosts(config))):
        assert Client(headers={"host": "evil.example:31313"}).get("/").status_code == 400
    assert "HELEXA_ALLOWED_HOSTS" in caplog.text and "evil.example:31313" in caplog.text


@each_case(
    ("arguments", "host"),
    [
        (["--port", "1", "--host", "0.0.0.0"], "0.0.0.0"),
        (["--host=::"], "::"),
        ([], "127.0.0.1"),
        (["--host"], "127.0.0.1"),
    ],
)
def test_the_flag_is_read_before_django_reads_it(arguments: list[str], host: str) -> None:
    assert gateway_host(arguments) == host


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


@each_case(
    ("address", "counted"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::"),
        ("2001:db8:1:3::1", "2001:db8:1:3::"),
        ("fe80::1%eth0", "fe80::"),
    ],
)
def test_a_client_has_one_address_or_one_ipv6_network(address: str, counted: str) -> None:
    assert counted_address(ip_address(address)) == counted
