"""What every answer of an upstream is checked for, and what its faults are to a client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from inference.gateway.upstreams.links import UpstreamLink
from inference.protocol.events import Failure
from inference.wire.errors import RequestFailedError
from inference.wire.upstream.answer_events import UpstreamErrorObject, UpstreamFaultError
from inference.wire.upstream.frames import FrameError
from inference.wire.upstream.refusals import FAILED, UNAVAILABLE, failure_in_stream, failure_of

if TYPE_CHECKING:
    import httpx2

OK, FIRST_ERROR = 200, 400
MAX_ERROR_BYTES = 64 * 1024


@contextmanager
def faults(link: UpstreamLink, has_begun: Callable[[], bool]) -> Iterator[None]:
    """Around the reading of an answer: raises ``RequestFailedError`` for its faults. Before the
    first token the upstream is unavailable: the same request may succeed a little later."""
    import httpx2

    name = link.entry.name
    try:
        yield
    except TimeoutError:
        raise _failed(name, "gave no token within the time allowed", has_begun()) from None
    except (UpstreamFaultError, FrameError) as error:
        raise _failed(name, f"answered with {error}", True) from None
    except UpstreamErrorObject as error:
        failure = failure_in_stream(name, error.error, secret=link.secret)
        raise RequestFailedError(failure) from None
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError):
        raise _failed(name, "cannot be reached", False) from None
    except httpx2.HTTPError:
        raise _failed(name, "broke off", has_begun()) from None


class Response(Protocol):
    @property
    def status_code(self) -> int: ...
    @property
    def headers(self) -> httpx2.Headers: ...
    def aiter_raw(self) -> AsyncIterator[bytes]: ...


async def check_status(link: UpstreamLink, response: Response) -> None:
    status = response.status_code
    if status == OK:
        return
    if status < FIRST_ERROR:
        raise UpstreamFaultError(f"status {status}, which is not followed")
    body = await read_whole(response, MAX_ERROR_BYTES, cuts=True)
    raise RequestFailedError(
        failure_of(
            link.entry.name,
            status,
            body,
            retry_after=response.headers.get("retry-after"),
            date=response.headers.get("date"),
            secret=link.secret,
        )
    )


async def read_whole(response: Response, max_bytes: int, *, cuts: bool = False) -> bytes:
    content = bytearray()
    async for part in response.aiter_raw():
        content += part
        if len(content) > max_bytes:
            if cuts:
                break
            raise UpstreamFaultError(f"more than {max_bytes:,} bytes")
    return bytes(content[:max_bytes])


def _failed(name: str, what: str, has_begun: bool) -> RequestFailedError:
    code = FAILED if has_begun else UNAVAILABLE
    return RequestFailedError(Failure(code=code, message=f"The upstream {name} {what}."))
