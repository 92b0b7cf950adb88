"""Proxies of the environment: what is asked directly, what goes through one, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from acp import RequestError
from acp.schema import HttpMcpServer

from helexa_acp.errors import ConfigError
from helexa_acp.http import proxy_for
from tests.acp.bridge import Bridge, bridge_here, endpoint_table
from tests.acp.fake_endpoint import FakeEndpoint, Reply
from tests.cases import each_case
from tests.proxies import DEAD, PROXY_CASES, SOCKS, set_proxies


@each_case("variables, url, expected", PROXY_CASES)
def test_which_proxy_is_asked(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], url: str, expected: str | None
) -> None:
    set_proxies(monkeypatch, **variables)
    if expected in variables:
        with pytest.raises(ConfigError, match=f"^{expected} names a proxy that is not supported"):
            proxy_for(url)
    else:
        assert proxy_for(url) == expected


async def test_this_machine_is_asked_directly(
    monkeypatch: pytest.MonkeyPatch, each_bridge: Bridge, endpoint: FakeEndpoint
) -> None:
    set_proxies(monkeypatch, http_proxy=DEAD, HTTPS_PROXY=DEAD, ALL_PROXY=SOCKS)
    endpoint.will(Reply("Hello."))
    await each_bridge.open()
    await each_bridge.ask("Hello!")
    assert each_bridge.editor.texts() == "Hello."
    assert "/v1/models" in [one.path for one in endpoint.received]


async def test_another_machine_is_asked_through_the_proxy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, endpoint: FakeEndpoint
) -> None:
    set_proxies(monkeypatch, http_proxy=endpoint.url.removesuffix("/v1"), ALL_PROXY=SOCKS)
    endpoint.will(Reply("Hello."))
    async with bridge_here(tmp_path, endpoint_table("http://beast.example/v1")) as bridge:
        await bridge.open()
        await bridge.ask("Hello!")
        assert bridge.editor.texts() == "Hello."
    assert {one.headers["host"] for one in endpoint.received} == {"beast.example"}


@pytest.mark.parametrize("wire_api", ["openai-chat", "anthropic-messages"])
async def test_a_proxy_that_cannot_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wire_api: str
) -> None:
    set_proxies(monkeypatch, ALL_PROXY=SOCKS)
    table = endpoint_table("http://beast.example/v1", wire_api)
    async with bridge_here(tmp_path, table) as bridge:
        server = HttpMcpServer(type="http", name="web", url="http://mcp.example/mcp", headers=[])
        await bridge.open(mcp_servers=[server])
        for _ in range(2):
            with pytest.raises(RequestError, match="ALL_PROXY names a proxy that is not"):
                await bridge.ask("Hello!")
        assert "web cannot be used: ALL_PROXY names a proxy that is not" in bridge.editor.texts()
