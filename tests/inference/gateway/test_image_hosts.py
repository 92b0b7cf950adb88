"""Addresses of images: the hosts that the gateway may connect to, and no others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import orjson
import pytest

from inference.gateway import images as image_fetch
from inference.gateway.images import (
    ImageFetchError,
    ImageParser,
    check_resolved,
    fetch_image,
    image_address,
)
from inference.protocol.generation import ChatInput
from inference.wire.common.parts import ImageFile, ImageRules
from inference.wire.dialect import NO_CONTEXT
from inference.wire.errors import InvalidImageError
from inference.wire.openai.chat import request as openai_chat
from inference.wire.openai.chat.request import ChatRequest
from tests.cases import each_case
from tests.inference.image_files import png

CAT = png(30, 20)
INSIDE = """127.0.0.1 10.1.2.3 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1 0.0.0.0 224.0.0.1
255.255.255.255 ::1 :: fe80::1%eth0 fd00::1 ::ffff:127.0.0.1 64:ff9b::7f00:1 2002:7f00:1::"""
RESOLVERS = ThreadPoolExecutor(4)
DRIP_S, DRIP_INTERVAL_S = 60.0, 0.05


@each_case(
    ("url", "hosts"),
    [
        ("https://images.example.org/a.png?b=1", ("images.example.org",)),
        ("https://IMAGES.example.org/a.png", ("images.example.org",)),
        ("http://images.example.org:80/a.png", ("images.example.org",)),
        ("https://a.cdn.example.org/", ("*.cdn.example.org",)),
        ("https://anywhere.example/", ("*",)),
        ("http://10.0.0.5:8080/a.png", ("10.0.0.5:8080",)),
        ("http://[::1]:8080/a.png", ("[::1]:8080",)),
    ],
)
def test_hosts_that_are_named(url: str, hosts: tuple[str, ...]) -> None:
    assert image_address(url, hosts).target.startswith("/")


@each_case(
    "url",
    [
        "https://example.org/",
        "https://evil-cdn.example.org/",
        "https://cdn.example.org.evil.example/",
        "https://images.example.org:8443/",
        "https://images.example.org@evil.example/",
        "https://user:word@images.example.org/",
        "https://images.example.org\\@evil.example/",
        "ftp://images.example.org/",
        "file:///etc/passwd",
        "https:///a.png",
        "https://[::1/",
        "https://images.example.org:99999/",
        "https://images.example.org/a\r\nHost: evil",
    ],
)
def test_hosts_that_are_not(url: str) -> None:
    with pytest.raises(ImageFetchError):
        image_address(url, ("images.example.org", "*.cdn.example.org"))


@each_case("resolved", INSIDE.split())
def test_a_name_may_not_lead_inside(resolved: str) -> None:
    anywhere = image_address("https://rebound.example/", ("*",))
    check_resolved(anywhere, ["93.184.216.34", "2606:4700::1"])
    check_resolved(image_address("http://nas.lan/", ("nas.lan",)), [resolved])
    for addresses in ([resolved], ["93.184.216.34", resolved]):
        with pytest.raises(ImageFetchError):
            check_resolved(anywhere, addresses)


async def fetched(url: str, hosts: tuple[str, ...], *, max_bytes: int) -> bytes:
    return await fetch_image(url, hosts, max_bytes=max_bytes, resolvers=RESOLVERS)


class _Images(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        match self.path:
            case "/cat.png":
                self._answer(200, CAT)
            case "/moved":
                self._answer(302, b"", ("Location", "/cat.png"))
            case "/away":
                self._answer(302, b"", ("Location", "http://127.0.0.2:1/cat.png"))
            case "/drip":
                self._drip()
            case "/round":
                self._answer(302, b"", ("Location", "/round"))
            case _:
                self._answer(404, b"nothing")

    def _answer(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in (*headers, ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _drip(self) -> None:
        """Headers without an end, a byte now and then, until the client leaves; for a minute."""
        self.send_response(200)
        self.flush_headers()
        with suppress(OSError):
            for _ in range(round(DRIP_S / DRIP_INTERVAL_S)):
                self.wfile.write(b"X")
                time.sleep(DRIP_INTERVAL_S)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Images)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


@each_case("path", ["/cat.png", "/moved"])
async def test_an_image_is_fetched(host: str, path: str) -> None:
    assert await fetched(f"http://{host}{path}", (host,), max_bytes=len(CAT)) == CAT


@each_case(
    ("url", "hosts", "max_bytes", "problem"),
    [
        ("http://{host}/none.png", ["{host}"], 1000, "status 404"),
        ("http://{host}/away", ["{host}"], 1000, "not fetched from this host"),
        ("http://{host}/away", ["{host}", "127.0.0.2:1"], 1000, "leads to another host"),
        ("http://{host}/round", ["{host}"], 1000, "leads on too often"),
        ("http://{host}/cat.png", ["{host}"], 10, "more than 10 bytes"),
        ("http://localhost:{port}/cat.png", ["*"], 1000, "not fetched from this host"),
        ("http://localhost/cat.png", ["*"], 1000, "not fetched from this host"),
    ],
)
async def test_why_it_is_not(
    host: str, url: str, hosts: list[str], max_bytes: int, problem: str
) -> None:
    named = {"host": host, "port": host.split(":")[1]}
    with pytest.raises(ImageFetchError, match=problem):
        allowed = tuple(each.format(**named) for each in hosts)
        await fetched(url.format(**named), allowed, max_bytes=max_bytes)


@each_case(
    ("slow", "limit_s"),
    [("the host", 0.0), ("the host's headers", 0.5), ("the resolver", 0.2)],
)
async def test_time_is_bounded(
    host: str, monkeypatch: pytest.MonkeyPatch, slow: str, limit_s: float
) -> None:
    monkeypatch.setattr(image_fetch, "TIME_LIMIT_S", limit_s)
    answers, url = threading.Event(), f"http://{host}/cat.png"
    if slow == "the resolver":
        monkeypatch.setattr(image_fetch.socket, "getaddrinfo", lambda *_, **__: answers.wait(60))
        url, host = "https://images.example.org/a.png", "*"
    elif slow == "the host's headers":
        url = f"http://{host}/drip"
    began_s = time.monotonic()
    try:
        with pytest.raises(ImageFetchError, match="could not be fetched"):
            await fetched(url, (host,), max_bytes=1000)
    finally:
        answers.set()
    assert time.monotonic() - began_s < DRIP_S, "long before the host would have ended"


def _asking(url: str) -> Callable[[], ChatRequest]:
    part = {"type": "image_url", "image_url": {"url": url}}
    body = {"model": "tiny", "messages": [{"role": "user", "content": [part]}]}
    return partial(openai_chat.parse, orjson.dumps(body), NO_CONTEXT)


async def test_a_body_is_read_with_what_was_fetched_or_its_image_refused(host: str) -> None:
    reader = ImageParser(ImageRules(fetches=True), (host,))
    parsed = await reader.parsed(_asking(f"http://{host}/cat.png"), num_bytes=100)
    assert isinstance(parsed.generation.input, ChatInput)
    (image,) = parsed.generation.input.messages[0].images
    assert isinstance(image, ImageFile)
    assert image.data == CAT
    with pytest.raises(InvalidImageError, match="status 404") as refused:
        await reader.parsed(_asking(f"http://{host}/none.png"), num_bytes=100)
    assert refused.value.param == "messages[0].content[0].image_url.url"
