"""Images of requests: fetched from allowed hosts, checked, and sent beside the inbox.

    parse ─▶ addresses wanted? ─▶ fetch, parse again ─▶ ImageFile in the request
    run_request ─▶ without_files ─┬▶ the request, with ImageRef             through the inbox
                                  └▶ bytes ─▶ ImageSender ─▶ Redis, the request's own key

A host that matches a pattern must have a public address: the owner of a name can point it into this
gateway's network. The connection goes to the checked address. Images in Redis are deleted when the
neuron has accepted the request, and expire where none does.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cache, partial
from typing import TypeVar
from urllib.parse import quote, urljoin, urlsplit

import msgspec
import redis
import redis.asyncio

from helexa_site.config import Config
from inference.gateway.server.http_messages import parse_aside
from inference.protocol.delivery import image_fields
from inference.protocol.generation import ChatInput, ChatMessage, Request
from inference.protocol.images import ImageRef
from inference.protocol.keys import images_key
from inference.redis_link import redis_unavailable, until_answered
from inference.supervised_threads import SupervisedPool
from inference.wire.errors import InvalidImageError
from inference.wire.images import ImageFile, ImageReading, ImageRules, images_read

logger = logging.getLogger(__name__)

T = TypeVar("T")
FETCHING_AT_ONCE = 8
TIME_LIMIT_S = 15.0
MAX_REDIRECTS = 3
REDIRECTS = frozenset({301, 302, 303, 307, 308})
OK = 200
KEPT_AFTER_DEADLINE_S = 60.0
PIECES_A_WRITE = 16
"""2 MiB: Redis buffers as much for a connection."""


class ImageFetchError(Exception):
    """The message is the reason shown to clients, without any text of the other side."""


async def fetch_image(
    url: str, hosts: Sequence[str], *, max_bytes: int, resolvers: Executor
) -> bytes:
    import httpx2

    try:
        address = first = image_address(url, hosts)
        async with asyncio.timeout(TIME_LIMIT_S):
            for _ in range(1 + MAX_REDIRECTS):
                answer = await _ask(address, max_bytes=max_bytes, resolvers=resolvers)
                if isinstance(answer, bytes):
                    return answer
                url = urljoin(url, answer)
                address = image_address(url, hosts)
                is_downgrade = (first.scheme, address.scheme) == ("https", "http")
                if address.host != first.host or is_downgrade:
                    raise ImageFetchError("the image's address leads to another host")
    except (OSError, httpx2.HTTPError, ValueError) as error:
        logger.info("an image could not be fetched from %s: %r", address.host, error)
        raise ImageFetchError("the image could not be fetched") from error
    raise ImageFetchError("the image's address leads on too often")


async def _ask(address: ImageAddress, *, max_bytes: int, resolvers: Executor) -> bytes | str:
    import httpx2

    find = partial(socket.getaddrinfo, address.host, address.port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(resolvers, find)
    resolved = [str(one[4][0]) for one in found]
    check_resolved(address, resolved)
    url = httpx2.URL(
        scheme=address.scheme,
        host=resolved[0],
        port=address.port,
        raw_path=address.target.encode("ascii"),
    )
    headers = {
        "Host": address.host_header,
        "Accept": "image/*",
        "Accept-Encoding": "identity",
    }
    verify = await asyncio.to_thread(_tls_context)
    async with (
        httpx2.AsyncClient(verify=verify, trust_env=False, timeout=None) as client,
        client.stream(
            "GET", url, headers=headers, extensions={"sni_hostname": address.host}
        ) as response,
    ):
        if response.status_code in REDIRECTS:
            return response.headers.get("location", "")
        if response.status_code != OK:
            raise ImageFetchError(f"the image's host answered with status {response.status_code}")
        body = bytearray()
        async for part in response.aiter_raw():
            body += part
            if len(body) > max_bytes:
                raise ImageFetchError(f"the image has more than {max_bytes:,} bytes")
        return bytes(body)


@cache
def _tls_context() -> ssl.SSLContext:
    return ssl.create_default_context()


ALL = "*"
ASCII = "".join(map(chr, range(0x21, 0x7F)))
USUAL_PORTS = {"http": 80, "https": 443}
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
CARRIES_IPV4 = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("2002::/16"))
"""Ranges that gateways translate to IPv4 addresses."""


@dataclass(frozen=True, slots=True)
class ImageAddress:
    scheme: str
    host: str
    port: int
    target: str
    is_named: bool
    """The operator allows this very host, so it may be in a private network."""

    @property
    def host_header(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == USUAL_PORTS[self.scheme] else f"{name}:{self.port}"


def image_address(url: str, hosts: Sequence[str]) -> ImageAddress:
    """``hosts``: those that the operator allows. Raises ``ImageFetchError``."""
    if any(ord(character) <= 0x20 or ord(character) == 0x7F for character in url):
        raise ImageFetchError("the address holds spaces or control characters")
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").encode("idna").decode(), parts.port
    except ValueError:
        raise ImageFetchError("the address is not understood") from None
    if parts.scheme not in USUAL_PORTS or not host:
        raise ImageFetchError("the address is not one of http or https")
    if parts.username is not None or parts.password is not None:
        raise ImageFetchError("the address holds a name or a password")
    usual = USUAL_PORTS[parts.scheme]
    is_named = _is_named(host, port or usual, usual, hosts)
    if not is_named and not (port in (None, usual) and _is_allowed(host, hosts)):
        raise ImageFetchError("images are not fetched from this host here")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return ImageAddress(
        scheme=parts.scheme,
        host=host,
        port=port or usual,
        target=quote(target, safe=ASCII, errors="replace"),
        is_named=is_named,
    )


def _is_named(host: str, port: int, usual: int, hosts: Sequence[str]) -> bool:
    written = f"[{host}]" if ":" in host else host
    return f"{written}:{port}" in hosts or (port == usual and written in hosts)


def _is_allowed(host: str, hosts: Sequence[str]) -> bool:
    return any(one == ALL or (one.startswith("*.") and host.endswith(one[1:])) for one in hosts)


def check_resolved(address: ImageAddress, resolved: Sequence[str]) -> None:
    """One address that is not public refuses them all. Raises ``ImageFetchError``."""
    if not resolved:
        raise ImageFetchError("the host of the image is not known")
    if address.is_named:
        return
    if not all(_is_public(ipaddress.ip_address(one.split("%")[0])) for one in resolved):
        raise ImageFetchError("images are not fetched from this host here")


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return _is_public(address.ipv4_mapped)
        if any(address in network for network in CARRIES_IPV4):
            return False
    return address.is_global and not address.is_multicast


def image_rules(config: Config) -> ImageRules:
    return ImageRules(
        max_bytes=config.max_image_bytes,
        max_pixels=config.max_image_pixels,
        max_images=config.max_images,
        max_total_bytes=config.max_images_bytes,
        fetches=bool(config.image_hosts),
    )


class ImageParser:
    def __init__(self, rules: ImageRules, hosts: Sequence[str]) -> None:
        self.rules = rules
        self._hosts = hosts
        self._places = asyncio.Semaphore(FETCHING_AT_ONCE)
        self._resolvers = SupervisedPool(FETCHING_AT_ONCE, thread_name_prefix="images")

    async def parsed(self, parse: Callable[[], T], num_bytes: int) -> T:
        """Raises ``ApiError``."""
        reading = ImageReading(rules=self.rules)
        parsed = await parse_aside(partial(_parse_with, reading, parse), num_bytes)
        if not reading.wanted:
            return parsed
        if len(reading.wanted) > self.rules.max_images:
            raise too_many(len(reading.wanted), self.rules, None)
        fetched = await self._fetched(reading.wanted)
        reading = ImageReading(rules=self.rules, fetched=fetched)
        return await parse_aside(partial(_parse_with, reading, parse), num_bytes)

    async def _fetched(self, wanted: Mapping[str, str]) -> dict[str, bytes]:
        """Fetches one after another, as their total size is bounded."""
        fetched: dict[str, bytes] = {}
        left_bytes = self.rules.max_total_bytes
        for url, path in wanted.items():
            most = min(self.rules.max_bytes, left_bytes)
            try:
                async with self._places:
                    fetched[url] = await fetch_image(
                        url, self._hosts, max_bytes=most, resolvers=self._resolvers
                    )
            except ImageFetchError as error:
                raise InvalidImageError(str(error), path) from None
            left_bytes -= len(fetched[url])
        return fetched


def _parse_with(reading: ImageReading, parse: Callable[[], T]) -> T:
    with images_read(reading):
        return parse()


def without_files(request: Request, rules: ImageRules) -> tuple[Request, list[ImageFile]]:
    """Raises ``InvalidImageError`` for too many."""
    if not isinstance(request.input, ChatInput):
        return request, []
    chat = request.input
    files = [image for image in chat.images if isinstance(image, ImageFile)]
    if not files:
        return request, []
    _check_together(files, rules)
    messages = [_bare(message) for message in chat.messages]
    chat = msgspec.structs.replace(chat, messages=messages)
    return msgspec.structs.replace(request, input=chat), files


def _check_together(files: Sequence[ImageFile], rules: ImageRules) -> None:
    if len(files) > rules.max_images:
        raise too_many(len(files), rules, files[rules.max_images].path)
    num_bytes = 0
    for image in files:
        num_bytes += image.num_bytes
        if num_bytes > rules.max_total_bytes:
            raise InvalidImageError(
                f"the images of this request have more than {rules.max_total_bytes:,} bytes, "
                "which is the most together",
                image.path,
            )


def too_many(num_images: int, rules: ImageRules, path: str | None) -> InvalidImageError:
    reason = f"this request has {num_images} images; at most {rules.max_images} are read"
    return InvalidImageError(reason, path)


def _bare(message: ChatMessage) -> ChatMessage:
    if not message.parts:
        return message
    parts = [_ref(part) if isinstance(part, ImageFile) else part for part in message.parts]
    return msgspec.structs.replace(message, parts=parts)


def _ref(image: ImageFile) -> ImageRef:
    return ImageRef(**{field: getattr(image, field) for field in ImageRef.__struct_fields__})


class ImageSender:
    def __init__(self, client: redis.asyncio.Redis, *, stall_limit_s: float) -> None:
        self._client = client
        self._stall_limit_s = stall_limit_s
        self._deleting: set[asyncio.Task[None]] = set()

    async def put(
        self, neuron: str, request_id: str, files: Sequence[ImageFile], *, timeout_s: float
    ) -> None:
        """Raises ``ServiceUnavailableError`` where Redis does not take them in time."""
        give_up_s = asyncio.get_running_loop().time() + self._stall_limit_s
        key = images_key(neuron, request_id)
        expiry_s = math.ceil(timeout_s + KEPT_AFTER_DEADLINE_S)
        for image in files:
            fields = list(image_fields(image.digest, image.data).items())
            for start in range(0, len(fields), PIECES_A_WRITE):
                some = dict(fields[start : start + PIECES_A_WRITE])
                write = partial(self._write, key, some, expiry_s)
                try:
                    await until_answered(write, give_up_s=give_up_s)
                except (redis.RedisError, OSError) as error:
                    logger.warning("Redis takes no images: %s", error)
                    raise redis_unavailable() from error

    async def _write(self, key: str, fields: dict[str, bytes], expiry_s: int) -> None:
        # Both or neither: a key without expiry would stay.
        async with self._client.pipeline(transaction=True) as pipeline:
            pipeline.hset(key, mapping=fields)  # type: ignore[arg-type]  # names are str
            pipeline.expire(key, expiry_s)
            await pipeline.execute()

    def forget_soon(self, neuron: str, request_id: str) -> None:
        task = asyncio.create_task(self._forget(images_key(neuron, request_id)))
        self._deleting.add(task)
        task.add_done_callback(self._deleting.discard)

    async def _forget(self, key: str) -> None:
        try:
            await self._client.delete(key)
        except (redis.RedisError, OSError) as error:
            logger.info("images are not deleted, and expire: %s", error)
