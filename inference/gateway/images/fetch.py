"""Fetching images that clients give by address, from the hosts that the operator allows.

    address ─▶ resolve once ─▶ check ─▶ connect to the checked one ─▶ GET ─▶ bounded bytes
                                                      └─ redirect, to the same host only ─▶ again

A host that is named by a pattern must have a public address: the owner of a name can let it point
into the network that this gateway stands in. The connection goes to the address that was checked,
so a name that changes in between changes nothing. Blocks: it runs in threads of its own.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import logging
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from urllib.parse import urljoin, urlsplit

from inference.loading.sources.deadline import MAX_THREADS, DeadlineError, within

logger = logging.getLogger(__name__)

TIME_LIMIT_S = 15.0
MAX_REDIRECTS = 3
READ_BYTES = 64 * 1024
REDIRECTS = frozenset({301, 302, 303, 307, 308})
OK = 200
RESOLVER_THREADS = threading.BoundedSemaphore(MAX_THREADS)
NOT_REACHED = "the image could not be fetched"


class ImageFetchError(Exception):
    """The message gives the reason to clients, without any text of the other side."""


def fetch_image(url: str, hosts: Sequence[str], *, max_bytes: int) -> bytes:
    until_s = time.monotonic() + TIME_LIMIT_S
    try:
        address = first = image_address(url, hosts)
        for _ in range(1 + MAX_REDIRECTS):
            answer = _ask(address, max_bytes=max_bytes, until_s=until_s)
            if isinstance(answer, bytes):
                return answer
            url = urljoin(url, answer.location)
            address = image_address(url, hosts)
            if address.host != first.host or (first.scheme, address.scheme) == ("https", "http"):
                raise ImageFetchError("the image's address leads to another host")
    except ImageAddressError as error:
        raise ImageFetchError(str(error)) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        logger.info("an image could not be fetched from %s: %s", address.host, error)
        raise ImageFetchError(NOT_REACHED) from error
    raise ImageFetchError("the image's address leads on too often")


class _Redirect:
    def __init__(self, location: str) -> None:
        self.location = location


def _ask(address: ImageAddress, *, max_bytes: int, until_s: float) -> bytes | _Redirect:
    connection = _Connection(address, until_s)
    ends = threading.Timer(max(0.0, until_s - time.monotonic()), connection.abort)
    ends.daemon = True
    ends.start()
    try:
        headers = {"Host": address.host_header, "Accept": "image/*", "Accept-Encoding": "identity"}
        connection.request("GET", address.target, headers=headers)
        response = connection.getresponse()
        connection.check_time()
        if response.status in REDIRECTS:
            return _Redirect(response.getheader("Location") or "")
        if response.status != OK:
            raise ImageFetchError(f"the image's host answered with status {response.status}")
        return _body(response, connection, max_bytes)
    finally:
        ends.cancel()
        connection.close()


def _body(response: http.client.HTTPResponse, connection: _Connection, max_bytes: int) -> bytes:
    body = bytearray()
    while part := response.read1(READ_BYTES):
        body += part
        if len(body) > max_bytes:
            raise ImageFetchError(f"the image has more than {max_bytes:,} bytes")
        connection.check_time()
    connection.check_time()
    return bytes(body)


class _Connection(http.client.HTTPConnection):
    """Resolves the host's name once, checks the addresses and connects to the first."""

    def __init__(self, address: ImageAddress, until_s: float) -> None:
        super().__init__(address.host, address.port)
        self._address = address
        self._until_s = until_s

    def connect(self) -> None:
        address = self._address
        resolved = self._resolved()
        check_resolved(address, resolved)
        self.sock = socket.create_connection((resolved[0], address.port), timeout=self._left_s())
        if address.scheme == "https":
            context = ssl.create_default_context()
            self.sock = context.wrap_socket(
                self.sock, server_hostname=address.host, do_handshake_on_connect=False
            )
            self.sock.do_handshake()

    def _resolved(self) -> list[str]:
        """The resolver has time limits of its own alone. Raises ``TimeoutError``."""
        address = self._address
        ask = partial(socket.getaddrinfo, address.host, address.port, type=socket.SOCK_STREAM)
        try:
            found = within(self._left_s(), ask, threads=RESOLVER_THREADS)
        except DeadlineError:
            raise TimeoutError("its name was not resolved in time") from None
        return [str(one[4][0]) for one in found]

    def abort(self) -> None:
        """Ends a read that waits, from another thread: a host may send a byte of its headers now
        and then without end, and a socket's own time limit restarts with each."""
        if self.sock is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    def check_time(self) -> None:
        """Raises ``TimeoutError``. A host that sends a byte now and then is given up as well."""
        if self.sock is not None:
            self.sock.settimeout(self._left_s())
        else:
            self._left_s()

    def _left_s(self) -> float:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("it took too long")
        return left_s


ALL = "*"
USUAL_PORTS = {"http": 80, "https": 443}
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
CARRIES_IPV4 = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("2002::/16"))
"""Addresses that a gateway on the way turns into others."""


class ImageAddressError(ValueError):
    """The message gives the reason to clients."""


@dataclass(frozen=True, slots=True)
class ImageAddress:
    scheme: str
    host: str
    port: int
    target: str
    is_named: bool
    """Literally, by the operator: it may be in a private network."""

    @property
    def host_header(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == USUAL_PORTS[self.scheme] else f"{name}:{self.port}"


def image_address(url: str, hosts: Sequence[str]) -> ImageAddress:
    if any(ord(character) <= 0x20 or ord(character) == 0x7F for character in url):
        raise ImageAddressError("the address holds spaces or control characters")
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").encode("idna").decode(), parts.port
    except ValueError:
        raise ImageAddressError("the address is not understood") from None
    if parts.scheme not in USUAL_PORTS or not host:
        raise ImageAddressError("the address is not one of http or https")
    if parts.username is not None or parts.password is not None:
        raise ImageAddressError("the address holds a name or a password")
    usual = USUAL_PORTS[parts.scheme]
    is_named = _is_named(host, port or usual, usual, hosts)
    if not is_named and not (port in (None, usual) and _is_allowed(host, hosts)):
        raise ImageAddressError("images are not fetched from this host here")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return ImageAddress(
        scheme=parts.scheme,
        host=host,
        port=port or usual,
        target=_quoted(target),
        is_named=is_named,
    )


def _is_named(host: str, port: int, usual: int, hosts: Sequence[str]) -> bool:
    written = f"[{host}]" if ":" in host else host
    return f"{written}:{port}" in hosts or (port == usual and written in hosts)


def _is_allowed(host: str, hosts: Sequence[str]) -> bool:
    return any(one == ALL or (one.startswith("*.") and host.endswith(one[1:])) for one in hosts)


def _quoted(target: str) -> str:
    return "".join(
        character
        if character.isascii()
        else "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "replace"))
        for character in target
    )


def check_resolved(address: ImageAddress, resolved: Sequence[str]) -> None:
    """``resolved``: all that its name stands for. One that is not public refuses them all. Raises
    ``ImageAddressError``."""
    if not resolved:
        raise ImageAddressError("the host of the image is not known")
    if address.is_named:
        return
    if not all(_is_public(ipaddress.ip_address(one.split("%")[0])) for one in resolved):
        raise ImageAddressError("images are not fetched from this host here")


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return _is_public(address.ipv4_mapped)
        if any(address in network for network in CARRIES_IPV4):
            return False
    return address.is_global and not address.is_multicast
