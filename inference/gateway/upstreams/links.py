"""This gateway's connections to upstreams: a pool for each, as large as its row allows.

An upstream that was unavailable for ``MAX_FAILURES`` requests in a row is left out:

    asked ── MAX_FAILURES ──▶ left out ── a probe is answered ──▶ asked ── one failure ──▶ left out
      ▲                                                             │
      └───────────────────────── it answers ◀───────────────────────┘

Belongs to one event loop. Must not know requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fleet.errors import UpstreamSecretError, UpstreamUnavailableError
from fleet.placement.targets import TargetState
from fleet.upstream_http import client_options, headers_of, list_url
from fleet.upstreams import UpstreamEntry, unseal
from inference.logs import ThrottledLog
from inference.wire.errors import RequestFailedError, ServiceUnavailableError, upstream_failed
from inference.wire.failures import (
    UPSTREAM_FAILED,
    UPSTREAM_UNAVAILABLE,
    upstream_failure,
    upstream_failure_in_stream,
)
from inference.wire.upstream.answer_events import (
    FrameError,
    UpstreamErrorObject,
    UpstreamFaultError,
)

if TYPE_CHECKING:
    import httpx2

    from inference.gateway.upstreams.connection import UpstreamConnection
    from inference.gateway.upstreams.transport import UpstreamTransport


logger = logging.getLogger(__name__)

RETRY_AFTER_S = 1.0
MAX_FAILURES = 5
PROBE_AFTER_S = 5.0
PROBE_TIME_LIMIT_S = 4.0
FIRST_SERVER_ERROR = 500
UNUSED = TargetState(is_ready=True, queue=0, num_requests=0)


class UpstreamLink:
    """Only this class has ``secret`` in clear."""

    def __init__(
        self,
        entry: UpstreamEntry,
        transport: UpstreamTransport,
        secret: str,
        *,
        max_waiting: int,
    ) -> None:
        self.entry = entry
        self._transport = transport
        self.free, self.free_drained = transport.free, transport.free_drained
        self._headers = [
            (b"host", urlsplit(entry.url).netloc.encode()),
            *((name.encode(), value.encode()) for name, value in headers_of(entry, secret).items()),
        ]
        self.secret = secret
        self._num_open = 0
        self._num_waiting = 0
        self._max_waiting = max_waiting
        self._places = asyncio.Semaphore(entry.concurrency)
        self._num_failures = 0
        self._probing: asyncio.Task[None] | None = None
        self._log = ThrottledLog(logger, logging.WARNING)

    async def post(
        self,
        url: str,
        body: bytes | AsyncIterable[bytes],
        headers: Mapping[str, str],
        *,
        until_s: float,
    ) -> UpstreamConnection:
        """The caller frees the answer. ``url`` is of the upstream's origin; ``headers`` have the
        length of a streamed body. Raises ``httpx2.TransportError``, ``TimeoutError``."""
        sent = [
            *self._headers,
            *((name.encode(), value.encode("latin-1")) for name, value in headers.items()),
        ]
        if isinstance(body, bytes):
            sent.append((b"content-length", b"%d" % len(body)))
        return await self._transport.send(b"POST", _url(url), sent, body, until_s, with_part=True)

    @property
    def is_left_out(self) -> bool:
        return self._num_failures >= MAX_FAILURES

    @property
    def state(self) -> TargetState:
        return TargetState(
            is_ready=not self.is_left_out and not self._places.locked(),
            queue=self._num_waiting,
            num_requests=self._num_open,
        )

    async def take_place(self, *, timeout_s: float) -> None:
        """Its caller calls ``leave_place``. Raises ``ServiceUnavailableError``."""
        self._num_open += 1
        try:
            await self._acquire(timeout_s)
        except BaseException:
            self._num_open -= 1
            raise
        if self.is_left_out:
            self._release()
            raise ServiceUnavailableError(
                UPSTREAM_UNAVAILABLE,
                f"The upstream {self.entry.name} was unavailable several times in a row, and is "
                "left out for a moment.",
                retry_after_s=PROBE_AFTER_S,
            )

    def leave_place(self, error: BaseException | None) -> None:
        self._release()
        if error is None:
            self.has_answered()
        elif isinstance(error, RequestFailedError):
            if error.code == UPSTREAM_UNAVAILABLE:
                self._was_unavailable(error.message)
            else:
                self.has_answered()

    def has_answered(self) -> None:
        """Call it with a request's first token."""
        self._num_failures = 0

    def retire(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
        self._transport.retire()

    def close(self) -> None:
        self.retire()
        self._transport.close()

    def _was_unavailable(self, why: str) -> None:
        self._num_failures += 1
        if self.is_left_out and (self._probing is None or self._probing.done()):
            self._log.log("left out", f"the upstream {self.entry.name} is left out: {why}")
            self._probing = asyncio.create_task(self._probe())

    async def _probe(self) -> None:
        while self.is_left_out:
            await asyncio.sleep(PROBE_AFTER_S)
            if await self._is_reachable():
                self._num_failures = min(self._num_failures, MAX_FAILURES - 1)

    async def _is_reachable(self) -> bool:
        import httpx2

        until_s = asyncio.get_running_loop().time() + PROBE_TIME_LIMIT_S
        url = _url(list_url(self.entry))
        try:
            response = await self._transport.send(b"GET", url, self._headers, b"", until_s)
        except (httpx2.HTTPError, TimeoutError):
            return False
        self.free(response)
        return response.status < FIRST_SERVER_ERROR

    async def _acquire(self, timeout_s: float) -> None:
        if not self._places.locked():
            await self._places.acquire()
            return
        name = self.entry.name
        if self._num_waiting >= self._max_waiting:
            raise ServiceUnavailableError(
                "queue_full",
                f"{self._max_waiting:,} requests wait for the upstream {name}, which is as many as "
                "may (HELEXA_MAX_WAITING_REQUESTS).",
                retry_after_s=RETRY_AFTER_S,
            )
        self._num_waiting += 1
        try:
            async with asyncio.timeout(timeout_s):
                await self._places.acquire()
        except TimeoutError:
            raise ServiceUnavailableError(
                "queue_timeout", f"No place of the upstream {name} became free in time."
            ) from None
        finally:
            self._num_waiting -= 1

    def _release(self) -> None:
        self._places.release()
        self._num_open -= 1


class UpstreamLinks:
    def __init__(self, signing_key: str, *, max_waiting: int) -> None:
        self._signing_key = signing_key
        self._max_waiting = max_waiting
        self._links: dict[str, UpstreamLink] = {}
        self._opening = asyncio.Lock()

    async def link(self, entry: UpstreamEntry) -> UpstreamLink:
        """Raises ``ApiError``."""
        found = self._links.get(entry.name)
        if found is not None and (found.entry is entry or found.entry == entry):
            return found
        async with self._opening:
            found = self._links.get(entry.name)
            if found is not None and found.entry == entry:
                return found
            made = self._links[entry.name] = await self._opened(entry)
        if found is not None:
            found.retire()
        return made

    def state_of(self, name: str) -> TargetState:
        found = self._links.get(name)
        return UNUSED if found is None else found.state

    def left_out(self) -> list[str]:
        return [name for name, link in self._links.items() if link.is_left_out]

    def close(self) -> None:
        links, self._links = list(self._links.values()), {}
        for link in links:
            link.close()

    async def _opened(self, entry: UpstreamEntry) -> UpstreamLink:
        from inference.gateway.upstreams.transport import UpstreamTransport

        try:
            sealed = entry.sealed_secret
            secret = unseal(sealed, self._signing_key) if sealed else ""
            # Certificates are read from disk.
            options = await asyncio.to_thread(client_options, entry, secret)
        except (UpstreamSecretError, UpstreamUnavailableError) as error:
            logger.error("the upstream %s cannot be used: %s", entry.name, error)
            raise upstream_failed(
                f"The upstream {entry.name} cannot be used; this server's log has the reason."
            ) from None
        transport = UpstreamTransport(
            options["verify"],
            proxy=options["proxy"] or "",
            connect_timeout_s=entry.connect_timeout_s,
        )
        return UpstreamLink(entry, transport, secret, max_waiting=self._max_waiting)


@lru_cache(maxsize=256)
def _url(text: str) -> httpx2.URL:
    import httpx2

    return httpx2.URL(text)


OK, FIRST_ERROR = 200, 400
MAX_ERROR_BYTES = 64 * 1024


@contextmanager
def faults(link: UpstreamLink, has_begun: Callable[[], bool]) -> Iterator[None]:
    """Before the first token the upstream is unavailable: a retry may succeed."""
    import httpx2

    name = link.entry.name
    try:
        yield
    except TimeoutError:
        raise _failed(name, "gave no token within the time allowed", has_begun()) from None
    except (UpstreamFaultError, FrameError) as error:
        raise _failed(name, f"answered with {error}", True) from None
    except UpstreamErrorObject as error:
        failure = upstream_failure_in_stream(name, error.error, secret=link.secret)
        raise RequestFailedError(failure) from None
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError):
        raise _failed(name, "cannot be reached", False) from None
    except httpx2.HTTPError:
        raise _failed(name, "broke off", has_begun()) from None


async def check_status(link: UpstreamLink, response: UpstreamConnection) -> None:
    status = response.status
    if status == OK:
        return
    if status < FIRST_ERROR:
        raise UpstreamFaultError(f"status {status}, which is not followed")
    body = await read_whole(response, MAX_ERROR_BYTES, cuts=True)
    raise RequestFailedError(
        upstream_failure(
            link.entry.name,
            status,
            body,
            retry_after=response.headers.get("retry-after"),
            date=response.headers.get("date"),
            secret=link.secret,
        )
    )


async def read_whole(response: UpstreamConnection, max_bytes: int, *, cuts: bool = False) -> bytes:
    content = bytearray()
    async for part in response.parts():
        content += part
        if len(content) > max_bytes:
            if cuts:
                break
            raise UpstreamFaultError(f"more than {max_bytes:,} bytes")
    return bytes(content[:max_bytes])


def _failed(name: str, what: str, has_begun: bool) -> RequestFailedError:
    code = UPSTREAM_FAILED if has_begun else UPSTREAM_UNAVAILABLE
    return upstream_failed(f"The upstream {name} {what}.", code)
