"""Pages of the web: from allowed hosts alone, and never from where they must not come."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from helexa_acp.config import from_table
from helexa_acp.editor import Editor as EditorPort
from helexa_acp.errors import ToolError
from helexa_acp.history import text_of
from helexa_acp.modes import Mode
from helexa_acp.tools import fetch, tools_for
from helexa_acp.tools.base import ToolContext
from helexa_acp.tools.fetch import checked_address, is_allowed_address, page_text
from tests.acp.editor import BARE, Editor
from tests.cases import each_case

HTML = b"<head><title>t</title></head><h1>Head</h1><p>A <a href='http://x/y'>link</a>.</p><script>no</script>"


class Site:
    """Answers by path; remembers the hosts it was asked for."""

    def __init__(self) -> None:
        self.pages: dict[str, tuple[str, bytes]] = {
            "/page": ("Content-Type: text/html", HTML),
            "/image": ("Content-Type: image/png", b"png"),
            "/away": ("Location: http://169.254.169.254/latest", b""),
            "/moved": ("Location: /page", b""),
            "/round": ("Location: /round", b""),
            "/large": ("Content-Type: text/plain", b"x" * 3_000_000),
        }
        self.hosts: list[str] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split()[1]
        self.hosts += [line[6:] for line in head.split("\r\n") if line.startswith("Host: ")]
        header, body = self.pages.get(path, ("X-None: 1", b"none"))
        status = 302 if header.startswith("Location") else 200 if path in self.pages else 404
        writer.write(
            f"HTTP/1.1 {status} X\r\n{header}\r\nConnection: close\r\n\r\n".encode() + body
        )
        await writer.drain()
        writer.close()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    server.close()


def table(*hosts: str) -> dict[str, Any]:
    return {"endpoints": [{"name": "x", "base_url": "http://x"}], "fetch_hosts": list(hosts)}


async def fetched(url: str, *hosts: str) -> str:
    client: Any = Editor()

    async def show(contents: list[Any]) -> None: ...

    config = from_table(table(*hosts), {})
    context = ToolContext(EditorPort(client, BARE, "s"), Path("/"), config, show)
    prepared = await fetch.FETCH.prepare(context, {"url": url})
    return text_of((await prepared.run()).parts)


def test_there_is_none_unless_configured() -> None:
    def names(*hosts: str) -> list[str]:
        return [tool.spec.name for tool in tools_for(from_table(table(*hosts), {}), Mode.DEFAULT)]

    assert "fetch" not in names()
    assert "fetch" in names("*.example.org")


async def test_a_page_as_text(site: Site) -> None:
    """A host that is named may be of the operator's own network."""
    text = await fetched(f"http://localhost:{site.port}/moved#part", "localhost")
    assert text == f"http://localhost:{site.port}/page (200):\nHead\nA link (http://x/y)."
    assert site.hosts == [f"localhost:{site.port}"] * 2
    assert "(404)" in await fetched(f"http://localhost:{site.port}/none", "localhost")
    assert "the rest was left out" in await fetched(
        f"http://localhost:{site.port}/large", "localhost"
    )


@pytest.mark.parametrize(
    ("path", "why"),
    [("image", "is not text"), ("away", "not one of fetch_hosts"), ("round", "redirects")],
)
async def test_pages_that_are_not_taken(site: Site, path: str, why: str) -> None:
    with pytest.raises(ToolError, match=why):
        await fetched(f"http://localhost:{site.port}/{path}", "localhost")


@each_case(
    ("url", "why"),
    [
        ("file:///etc/passwd", "only http"),
        ("http://u:p@localhost/", "password"),
        ("http://127.0.0.1/", "not a public address"),
        ("http://localhost/", "not a public address"),
        ("http://169.254.169.254/", "not a public address"),
        ("http://[::1]/", "not a public address"),
        ("http://[::ffff:169.254.169.254]/", "not a public address"),
        ("http://2852039166/", "not a public address|no address"),
        ("nonsense", "only http"),
    ],
)
async def test_everything_is_not_everywhere(url: str, why: str) -> None:
    with pytest.raises(ToolError, match=why):
        await fetched(url, "*")


@each_case(
    ("host", "is_allowed"),
    [
        *(("docs.python.org", True), ("a.b.example.org", True)),
        *((host, False) for host in ("python.org", "example.org", "evil-example.org")),
        ("docs.python.org.evil.net", False),
    ],
)
async def test_hosts(host: str, is_allowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolved(*_: Any, **__: Any) -> list[Any]:
        return [(0, 0, 0, "", ("8.8.8.8", 80))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolved)
    checking = checked_address(host, 80, ("docs.python.org", "*.example.org"))
    if is_allowed:
        assert str(await checking) == "8.8.8.8"
    else:
        with pytest.raises(ToolError, match="not one of fetch_hosts"):
            await checking


@each_case(
    ("address", "by_default", "when_named"),
    [
        ("8.8.8.8", True, True),
        ("2606:4700::1111", True, True),
        ("::ffff:8.8.8.8", True, True),
        ("127.0.0.1", False, True),
        ("10.0.0.1", False, True),
        ("192.168.1.1", False, True),
        ("fd00::1", False, True),
        ("169.254.169.254", False, False),
        ("fe80::1", False, False),
        ("::ffff:169.254.169.254", False, False),
        ("2002:a9fe:a9fe::", False, False),
        ("0.0.0.0", False, False),
        ("224.0.0.1", False, False),
    ],
)
def test_addresses(address: str, by_default: bool, when_named: bool) -> None:
    parsed = ipaddress.ip_address(address)
    assert is_allowed_address(parsed, is_named=False) is by_default
    assert is_allowed_address(parsed, is_named=True) is when_named


async def test_one_bad_address_of_a_host_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolved(*_: Any, **__: Any) -> list[Any]:
        return [(0, 0, 0, "", (address, 80)) for address in ("8.8.8.8", "169.254.169.254")]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolved)
    with pytest.raises(ToolError, match=r"169\.254"):
        await checked_address("two.example.org", 80, ("two.example.org",))


def test_the_text_of_broken_pages() -> None:
    assert page_text("<p>a<script>b</p>c") == "a"
    assert page_text("</script></a>x<svg><path></svg>y") == "xy"
    assert page_text("1 &lt; 2<br>3") == "1 < 2\n3"
