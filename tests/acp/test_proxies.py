"""Proxies of the environment: what is asked directly, what goes through one, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from acp import RequestError
from acp.schema import HttpMcpServer

from helexa_acp.errors import ConfigError
from helexa_acp.http import proxy_for
from tests.acp.bridge import bridge_here, endpoint_table
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


@pytest.mark.parametrize("is_here", [True, False], ids=["directly", "through the proxy"])
async def test_what_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, endpoint: FakeEndpoint, is_here: bool
) -> None:
    proxy = DEAD if is_here else endpoint.url.removesuffix("/v1")
    set_proxies(monkeypatch, http_proxy=proxy, ALL_PROXY=SOCKS)
    endpoint.will(Reply("Hello."))
    url = endpoint.url if is_here else "http://beast.example/v1"
    async with bridge_here(tmp_path, endpoint_table(url)) as bridge:
        await bridge.open()
        await bridge.ask("Hello!")
        assert bridge.editor.texts() == "Hello."
    assert {one.headers["host"] for one in endpoint.received} == {url.split("/")[2]}
    assert "/v1/models" in [one.path for one in endpoint.received]


async def test_a_proxy_that_cannot_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    set_proxies(monkeypatch, ALL_PROXY=SOCKS)
    async with bridge_here(tmp_path, endpoint_table("http://beast.example/v1")) as bridge:
        server = HttpMcpServer(type="http", name="web", url="http://mcp.example/mcp", headers=[])
        await bridge.open(mcp_servers=[server])
        with pytest.raises(RequestError, match="ALL_PROXY names a proxy that is not"):
            await bridge.ask("Hello!")
        assert "web cannot be used: ALL_PROXY names a proxy that is not" in bridge.editor.texts()
