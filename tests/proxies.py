"""Proxies that the environment of a test names."""

from __future__ import annotations

import os

import pytest

DEAD, SOCKS = "http://127.0.0.1:9", "socks5://127.0.0.1:9"
PROXY, OTHER = "http://proxy.example:3128", "http://other.example:3128"

BEAST = "http://beast.example:31313/v1"
PROXY_CASES: list[tuple[dict[str, str], str, str | None]] = [
    ({}, BEAST, None),
    ({"http_proxy": PROXY}, BEAST, PROXY),
    ({"HTTP_PROXY": PROXY}, BEAST, PROXY),
    ({"http_proxy": "proxy.example:3128"}, BEAST, PROXY),
    ({"https_proxy": PROXY}, BEAST, None),
    ({"https_proxy": PROXY}, "https://beast.example", PROXY),
    ({"ALL_PROXY": PROXY}, BEAST, PROXY),
    ({"ALL_PROXY": PROXY, "http_proxy": OTHER}, BEAST, OTHER),
    ({"ALL_PROXY": SOCKS, "http_proxy": OTHER}, BEAST, OTHER),
    # This machine.
    ({"ALL_PROXY": SOCKS}, "http://127.0.0.1:31313/v1", None),
    ({"http_proxy": PROXY}, "http://127.1.2.3:31313", None),
    ({"http_proxy": PROXY}, "http://localhost:31313", None),
    ({"http_proxy": PROXY}, "http://LOCALHOST", None),
    ({"http_proxy": PROXY}, "http://[::1]:31313", None),
    ({"http_proxy": PROXY}, "http://helexa.localhost:31313", None),
    ({"http_proxy": PROXY}, "http://0.0.0.0:31313", None),
    ({"http_proxy": PROXY}, "http://localhost.example", PROXY),
    # NO_PROXY.
    ({"ALL_PROXY": SOCKS, "NO_PROXY": "beast.example"}, BEAST, None),
    ({"http_proxy": PROXY, "no_proxy": "a.example, .example"}, BEAST, None),
    ({"http_proxy": PROXY, "no_proxy": "example"}, BEAST, None),
    ({"http_proxy": PROXY, "no_proxy": "*.example"}, BEAST, None),
    ({"http_proxy": PROXY, "no_proxy": "east.example"}, BEAST, PROXY),
    ({"http_proxy": PROXY, "no_proxy": "beast.example:31313"}, BEAST, None),
    ({"http_proxy": PROXY, "no_proxy": "beast.example:80"}, BEAST, PROXY),
    ({"http_proxy": PROXY, "no_proxy": "Beast.Example"}, "http://BEAST.example", None),
    ({"http_proxy": PROXY, "no_proxy": "a.example,*"}, BEAST, None),
    ({"http_proxy": PROXY, "no_proxy": "10.0.0.0/8"}, "http://10.1.2.3:31313", None),
    ({"http_proxy": PROXY, "no_proxy": "10.0.0.0/8"}, "http://11.1.2.3:31313", PROXY),
    ({"http_proxy": PROXY, "no_proxy": "10.1.2.3"}, "http://user:key@10.1.2.3:31313", None),
    ({"http_proxy": PROXY, "no_proxy": "fd00::/8"}, "http://[fd00::5]:31313", None),
    ({"http_proxy": PROXY, "no_proxy": "[fd00::5]"}, "http://[fd00::5]:31313", None),
    # The variable of a proxy that is refused.
    ({"ALL_PROXY": SOCKS}, BEAST, "ALL_PROXY"),
    ({"HTTPS_PROXY": "socks5h://127.0.0.1:9"}, "https://beast.example", "HTTPS_PROXY"),
    ({"http_proxy": "SOCKS4://127.0.0.1:9", "ALL_PROXY": PROXY}, BEAST, "http_proxy"),
    ({"http_proxy": "http://proxy.example:none"}, BEAST, "http_proxy"),
]
"""Variables, a URL, and its proxy: ``None`` for none, a variable's name for a refusal."""


def set_proxies(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    """Only these; those of this machine's shell are gone for the test."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
