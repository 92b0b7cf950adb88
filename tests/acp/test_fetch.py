"""Pages of the web: from allowed hosts alone, and never from where they must not come. Proxies of
the environment: what is asked directly, what goes through one, what is refused."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from acp import RequestError
from acp.schema import HttpMcpServer

from helexa_acp.calls import tools_for
from helexa_acp.config import Config, from_table
from helexa_acp.errors import ConfigError, ToolError
from helexa_acp.tools import Mode
from helexa_acp.tools.fetch import checked_address, is_allowed_address, page_text
from helexa_acp.transports import proxy_for
from tests.acp.bridge import Workshop, bridge_here, endpoint_table
from tests.acp.fake_endpoint import FakeEndpoint, Reply, read_request, write
from tests.cases import each_case
from tests.proxies import DEAD, PROXY_CASES, SOCKS, set_proxies

HTML = b"<head><title>t</title></head><h1>Head</h1><p>A <a href='http://x/y'>link</a>.</p><script>no</script>"
PAGES = {
    "/page": ("Content-Type: text/html", HTML),
    "/image": ("Content-Type: image/png", b"png"),
    "/away": ("Location: http://169.254.169.254/latest", b""),
    "/moved": ("Location: /page", b""),
    "/round": ("Location: /round", b""),
    "/large": ("Content-Type: text/plain", b"x" * 3_000_000),
}


@pytest.fixture
async def site() -> AsyncIterator[str]:
    """Answers by path, with the host that it was asked for."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received = await read_request(reader)
        assert received.headers["host"] == f"localhost:{port}"
        header, body = PAGES.get(received.path, ("X-None: 1", b"none"))
        status = 302 if "Location" in header else 200 if received.path in PAGES else 404
        write(writer, status, body, f"{header}\r\nConnection: close")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    yield f"http://localhost:{port}"
    server.close()


def config(*hosts: str) -> Config:
    table = {"endpoints": [{"name": "x", "base_url": "http://x"}], "fetch_hosts": list(hosts)}
    return from_table(table, {})


async def fetched(url: str, host: str = "localhost") -> str:
    allowed = config(host)
    shop = Workshop(Path("/"), config=allowed, tools=tools_for(allowed, Mode.DEFAULT))
    return await shop.text("fetch", url=url)


async def test_a_page_as_text(site: str) -> None:
    """A host that is named may be of the operator's own network; none is asked else."""
    assert "fetch" not in [tool.spec.name for tool in tools_for(config(), Mode.DEFAULT)]
    text = await fetched(f"{site}/moved#part")
    assert text == f"{site}/page (200):\nHead\nA link (http://x/y)."
    assert "(404)" in await fetched(f"{site}/none")
    assert "the rest was left out" in await fetched(f"{site}/large")
    for path, why in (("image", "is not text"), ("away", "fetch_hosts"), ("round", "redirects")):
        with pytest.raises(ToolError, match=why):
            await fetched(f"{site}/{path}")


@each_case(
    ("url", "why"),
    [
        ("file:///etc/passwd", "only http"),
        ("nonsense", "only http"),
        ("http://u:p@localhost/", "password"),
        ("http://localhost/", "not a public address"),
        ("http://[::ffff:169.254.169.254]/", "not a public address"),
        ("http://2852039166/", "not a public address|no address"),
    ],
)
async def test_everything_is_not_everywhere(url: str, why: str) -> None:
    with pytest.raises(ToolError, match=why):
        await fetched(url, "*")


STRANGERS = ("python.org", "example.org", "evil-example.org", "docs.python.org.evil.net")


@each_case(
    ("host", "addresses", "refusal"),
    [
        ("docs.python.org", ["8.8.8.8"], None),
        ("a.b.example.org", ["8.8.8.8"], None),
        ("a.example.org", ["8.8.8.8", "169.254.169.254"], r"169\.254"),
        ("a.example.org", [], "no address"),
        *((host, ["8.8.8.8"], "not one of fetch_hosts") for host in STRANGERS),
    ],
)
async def test_hosts(
    monkeypatch: pytest.MonkeyPatch, host: str, addresses: list[str], refusal: str | None
) -> None:
    async def resolved(*_: Any, **__: Any) -> list[Any]:
        return [(0, 0, 0, "", (address, 80)) for address in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolved)
    checking = checked_address(host, 80, ("docs.python.org", "*.example.org"))
    if refusal is None:
        assert str(await checking) == "8.8.8.8"
    else:
        with pytest.raises(ToolError, match=refusal):
            await checking


def test_addresses() -> None:
    for addresses, by_default, when_named in (
        (("8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"), True, True),
        (("127.0.0.1", "10.0.0.1", "192.168.1.1", "fd00::1"), False, True),
        (("169.254.169.254", "fe80::1", "0.0.0.0", "224.0.0.1"), False, False),
        (("::ffff:169.254.169.254", "2002:a9fe:a9fe::"), False, False),
    ):
        for parsed in map(ipaddress.ip_address, addresses):
            assert is_allowed_address(parsed, is_named=False) is by_default, parsed
            assert is_allowed_address(parsed, is_named=True) is when_named, parsed

    assert page_text("<p>a<script>b</p>c") == "a"
    assert page_text("</script></a>x<svg><path></svg>y") == "xy"
    assert page_text("1 &lt; 2<br>3") == "1 < 2\n3"


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


async def test_a_proxy_of_no_use_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_proxies(monkeypatch, ALL_PROXY=SOCKS)
    async with bridge_here(tmp_path, endpoint_table("http://beast.example/v1")) as bridge:
        server = HttpMcpServer(type="http", name="web", url="http://mcp.example/mcp", headers=[])
        await bridge.open(mcp_servers=[server])
        with pytest.raises(RequestError, match="ALL_PROXY names a proxy that is not"):
            await bridge.ask("Hello!")
        assert "web cannot be used: ALL_PROXY names a proxy that is not" in bridge.editor.texts()
