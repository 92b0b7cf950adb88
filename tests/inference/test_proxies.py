from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from django.core.management.base import CommandError

from fleet.management.backend import RefusedError, RestBackend
from fleet.management.chat_client import ChatClient
from fleet.management.commands.deploy_gate import GatewayFleet
from inference.proxies import UnsupportedProxyError, proxy_for
from metering.bench.client import Http
from metering.bench.errors import TargetError
from tests.cases import each_case
from tests.proxies import DEAD, PROXY_CASES, SOCKS, set_proxies

BEAST = "http://beast.example:31313"
CLIENTS: dict[str, Callable[[str], Any]] = {
    "commands": lambda url: RestBackend(url, None).ask("GET", "models"),
    "chat": lambda url: ChatClient(url, None).model_cards(),
    "gate": lambda url: GatewayFleet(url, None).ask("/v1/models"),
    "bench": lambda url: Http(url, headers={}, timeout_s=60).get("v1/models"),
}
"""The clients of commands, each with a question."""


@pytest.fixture
def asked() -> Iterator[list[str]]:
    """The targets that a server on loopback is asked for; its URL is the first."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            targets.append(self.path)
            body = json.dumps({"data": []}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        targets = [f"http://127.0.0.1:{server.server_port}"]
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield targets
        server.shutdown()


@each_case("variables, url, expected", PROXY_CASES)
def test_which_proxy_is_asked(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], url: str, expected: str | None
) -> None:
    set_proxies(monkeypatch, **variables)
    if expected in variables:
        with pytest.raises(UnsupportedProxyError, match=f"^{expected} names a proxy that is not"):
            proxy_for(url)
    else:
        assert proxy_for(url) == expected


@each_case("ask", CLIENTS.values(), ids=CLIENTS)
def test_clients_ask_this_machine_directly_and_others_through_the_proxy(
    monkeypatch: pytest.MonkeyPatch, asked: list[str], ask: Callable[[str], Any]
) -> None:
    url, *before = asked
    set_proxies(monkeypatch, http_proxy=DEAD, HTTPS_PROXY=DEAD, ALL_PROXY=SOCKS)
    ask(url)
    assert len(asked) == 1 + len(before) + 1
    set_proxies(monkeypatch, all_proxy=url)
    ask(BEAST)
    assert asked[-1].startswith(f"{BEAST}/")
    set_proxies(monkeypatch, ALL_PROXY=SOCKS)
    errors = (CommandError, RefusedError, TargetError)
    with pytest.raises(errors, match="ALL_PROXY names a proxy") as raised:
        ask(BEAST)
    assert "\n" not in str(raised.value)
