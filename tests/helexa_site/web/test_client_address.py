"""Tests that only trusted proxies' headers decide a client's address."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from helexa_site.web.client_address import client_address, counted_address
from tests.cases import each_case

PROXIES = tuple(ip_network(word) for word in ("10.0.0.0/8", "127.0.0.1", "fd00::/8"))


@each_case(
    ("peer", "forwarded_for", "address"),
    [
        ("192.0.2.1", "", "192.0.2.1"),
        ("192.0.2.1", "198.51.100.7", "192.0.2.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "198.51.100.7", "198.51.100.7"),
        ("10.0.0.1", "203.0.113.5, 198.51.100.7", "198.51.100.7"),
        ("10.0.0.1", "10.1.1.1, 198.51.100.7 , 10.2.2.2", "198.51.100.7"),
        ("127.0.0.1", "10.1.1.1,10.2.2.2", "10.1.1.1"),
        ("10.0.0.1", "198.51.100.7, unknown", "10.0.0.1"),
        ("10.0.0.1", "198.51.100.7, unknown, 10.2.2.2", "10.2.2.2"),
        ("10.0.0.1", ",,", "10.0.0.1"),
        ("10.0.0.1", "198.51.100.7:4711", "198.51.100.7"),
        ("10.0.0.1", "[2001:db8::7]:4711", "2001:db8::7"),
        ("10.0.0.1", "2001:db8::7", "2001:db8::7"),
        ("::ffff:10.0.0.1", "::ffff:198.51.100.7", "198.51.100.7"),
        ("fd00::1", "2001:db8::7", "2001:db8::7"),
        ("2001:db8::1", "198.51.100.7", "2001:db8::1"),
        ("", "198.51.100.7", "::"),
    ],
)
def test_the_first_from_the_right_that_is_no_proxy(
    peer: str, forwarded_for: str, address: str
) -> None:
    assert client_address(peer, forwarded_for, PROXIES) == ip_address(address)


def test_without_trusted_proxies_the_peer_asks() -> None:
    for peer in ("127.0.0.1", "10.0.0.1", "::1"):
        assert client_address(peer, "198.51.100.7", ()) == ip_address(peer)


@each_case(
    ("address", "counted"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::"),
        ("2001:db8:1:3::1", "2001:db8:1:3::"),
        ("fe80::1%eth0", "fe80::"),
        ("::1", "::"),
    ],
)
def test_a_client_has_one_address_or_one_ipv6_network(address: str, counted: str) -> None:
    assert counted_address(ip_address(address)) == counted
