"""fetch: a web page as text, from hosts that the configuration allows."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Annotated

import httpx2
from msgspec import Meta, Struct

from helexa_acp import __version__
from helexa_acp.errors import ToolError
from helexa_acp.tools import Action, Outcome, Prepared, ToolContext, text_outcome, tool

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
UNSEEN = frozenset({"script", "style", "template", "svg", "noscript", "head"})
BLOCKS = frozenset(
    {"p", "div", "section", "article", "li", "ul", "ol", "table", "tr", "pre", "br", "blockquote"}
    | {f"h{level}" for level in range(1, 7)}
)
MAX_REDIRECTS = 5
MAX_BYTES = 2 * 1024 * 1024
MAX_CHARACTERS = 60_000
TIMEOUT_S = 30.0
TEXT_ENDINGS = ("json", "xml", "yaml", "script")


def _check_host(host: str, allowed: Sequence[str]) -> None:
    for entry in allowed:
        if entry in ("*", host) or (entry.startswith("*.") and host.endswith(entry[1:])):
            return
    raise ToolError(f"{host} is not one of fetch_hosts in the configuration")


def is_allowed_address(address: Address, *, is_named: bool) -> bool:
    """``is_named``: the very host is configured, so it may be private. Link-local addresses are
    never allowed: clouds hand out credentials there."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_allowed_address(address.ipv4_mapped, is_named=is_named)
        if address.sixtofour is not None or address.teredo is not None:
            return False
    if address.is_link_local or address.is_multicast or address.is_unspecified:
        return False
    return is_named or address.is_global


async def checked_address(host: str, port: int, allowed: Sequence[str]) -> Address:
    """All of the host's addresses must be allowed. Raises ToolError."""
    _check_host(host, allowed)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ToolError(f"{host} has no address: {error}") from None
    addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
    for address in addresses:
        if not is_allowed_address(address, is_named=host in allowed):
            raise ToolError(f"{host} is {address}, which is not a public address")
    if not addresses:
        raise ToolError(f"{host} has no address")
    return addresses[0]


def page_text(html: str) -> str:
    """One paragraph a line; links keep their address."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    lines = (" ".join(line.split()) for line in "".join(reader.pieces).splitlines())
    return "\n".join(line for line in lines if line)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self._unseen: list[str] = []
        self._links: list[str | None] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in UNSEEN:
            self._unseen.append(tag)
        elif tag in BLOCKS:
            self.pieces.append("\n")
        elif tag == "a":
            self._links.append(dict(attrs).get("href"))

    def handle_endtag(self, tag: str) -> None:
        if tag in self._unseen:
            while self._unseen.pop() != tag:
                pass
        elif tag in BLOCKS:
            self.pieces.append("\n")
        elif tag == "a" and self._links:
            link = self._links.pop()
            if link and link.startswith("http") and not self._unseen:
                self.pieces.append(f" ({link})")

    def handle_data(self, data: str) -> None:
        if not self._unseen:
            self.pieces.append(data)


class Parameters(Struct):
    """Gets a page of the web as text."""

    url: Annotated[str, Meta(description="http or https.")]


async def prepare(context: ToolContext, given: Parameters) -> Prepared:
    first, allowed = _url(given.url), context.config.fetch_hosts
    _check_host(first.host, allowed)

    async def run() -> Outcome:
        """Each redirect is checked the same way."""
        url = first
        for _ in range(MAX_REDIRECTS + 1):
            response, text = await _get(url, allowed)
            if text is None:
                url = _url(str(url.join(response.headers["location"])))
                continue
            cut = "\n[the rest was left out]" if len(text) > MAX_CHARACTERS else ""
            described = f"{url} ({response.status_code}):\n{text[:MAX_CHARACTERS]}{cut}"
            return text_outcome(described, is_error=response.status_code >= 400)
        raise ToolError(f"more than {MAX_REDIRECTS} redirects")

    return Prepared(
        f"Fetch {first}",
        run,
        remembers=f"fetch {first.host}",
        remembered_as=f"Always allow {first.host}, this session",
    )


async def _get(url: httpx2.URL, allowed: tuple[str, ...]) -> tuple[httpx2.Response, str | None]:
    """``None``: it has moved. Connects to the checked address, whatever the name resolves to a
    moment later. A proxy is not used: it would resolve the name itself."""
    port = url.port or (443 if url.scheme == "https" else 80)
    address = await checked_address(url.host, port, allowed)
    headers = {
        "Host": url.netloc.decode("ascii"),
        "User-Agent": f"helexa-acp/{__version__}",
        "Accept": "text/html, text/*, application/json;q=0.9, */*;q=0.1",
    }
    try:
        async with (
            httpx2.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as client,
            client.stream(
                "GET",
                url.copy_with(host=str(address)),
                headers=headers,
                extensions={"sni_hostname": url.host},
            ) as response,
        ):
            return response, await _text(response)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise ToolError(f"{url}: {error or type(error).__name__}") from None


async def _text(response: httpx2.Response) -> str | None:
    if response.is_redirect and "location" in response.headers:
        return None
    media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type and not media_type.startswith("text/") and not media_type.endswith(TEXT_ENDINGS):
        raise ToolError(f"{media_type} is not text")
    data = b""
    async for chunk in response.aiter_bytes():
        data += chunk
        if len(data) > MAX_BYTES:
            break
    text = data[:MAX_BYTES].decode(response.charset_encoding or "utf-8", "replace")
    return page_text(text) if "html" in media_type else text


def _url(written: str) -> httpx2.URL:
    try:
        url = httpx2.URL(written)
    except (httpx2.InvalidURL, ValueError) as error:
        raise ToolError(f"{written!r} is no URL: {error}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ToolError("only http and https addresses are fetched")
    if url.userinfo:
        raise ToolError("an address with a password in it is not fetched")
    return url.copy_with(fragment=None)


FETCH = tool("fetch", "fetch", Action.FETCH, Parameters, prepare)
