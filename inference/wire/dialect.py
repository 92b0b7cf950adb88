"""The interface of a dialect, and the context that a dialect gets beside the body.

    parse(body, context) ─▶ ParsedRequest ─▶ stream_encoder | body_encoder ─▶ encode(event) ─▶ bytes

A dialect's module of errors fits ``ErrorDialect`` by having these names. The headers that the
responses of all dialects have are here too: the request's id, and when an error may be retried.
Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from inference.protocol.events import Event
from inference.protocol.generation import GenerationRequest
from inference.wire.common.failures import NOT_REPEATED
from inference.wire.errors import TOO_MANY_REQUESTS, ApiError, MethodNotAllowedError

WAITING_COMMENT = b": waiting\n\n"
"""A line that readers of server-sent events skip. Sent while a stream has not begun: in every
dialect its first event must come first."""


def waiting_comment(words: str) -> bytes:
    """The same with the reason for the wait, on one line."""
    return f": waiting: {' '.join(words.split())}\n\n".encode()


_LINE_ENDS = (
    ("\N{NEXT LINE}".encode(), rb"\u0085"),
    ("\N{LINE SEPARATOR}".encode(), rb"\u2028"),
    ("\N{PARAGRAPH SEPARATOR}".encode(), rb"\u2029"),
)


def with_escaped_line_ends(frames: bytes) -> bytes:
    """Frames, or lines of JSON, in which U+0085, U+2028 and U+2029 are escaped.

    JSON's strings may hold them as they are (RFC 8259, section 7). ``str.splitlines`` ends a line
    at each, and so do readers that are built on it, such as httpx' ``iter_lines``, with which
    Ollama's client reads: they would cut an event in two.
    """
    if frames.isascii():
        return frames
    for line_end, escape in _LINE_ENDS:
        frames = frames.replace(line_end, escape)
    return frames


UnixClock = Callable[[], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """``headers`` have lower-case names; of a name given twice the last counts."""

    headers: Mapping[str, str] = field(default_factory=dict)
    always_include_usage: bool = False


NO_CONTEXT = RequestContext()


class Encoder(Protocol):
    """Stateful, for one answer. A body encoder gives nothing until the last event."""

    def encode(self, event: Event) -> bytes: ...


class PartsEncoder(Protocol):
    """A body encoder of answers that may be large: it gives what an event adds to the body in parts
    that are small where they can be."""

    def parts(self, event: Event) -> Iterator[bytes]: ...


class ParsedRequest(Protocol):
    @property
    def generation(self) -> GenerationRequest: ...
    @property
    def stream(self) -> bool: ...
    def stream_encoder(self, *, request_id: str, clock: UnixClock) -> Encoder: ...
    def body_encoder(self, *, request_id: str, clock: UnixClock) -> Encoder: ...


class Parse(Protocol):
    def __call__(self, body: bytes, context: RequestContext, /) -> ParsedRequest:
        """Raises ``ApiError`` for everything that is not a request this server honours whole."""
        ...


class ErrorDialect(Protocol):
    @property
    def KEEP_ALIVE_FRAME(self) -> bytes:  # noqa: N802 - a module's constant
        """Sent while a stream that has begun has no events."""
        ...

    def error_body(self, error: ApiError, *, request_id: str) -> bytes: ...
    def error_frame(self, error: ApiError, *, request_id: str) -> bytes: ...


REQUEST_ID_HEADERS = (b"x-request-id", b"request-id")
"""OpenAI's clients look for the first, Anthropic's for the second."""


def request_id_headers(request_id: str) -> list[tuple[bytes, bytes]]:
    return [(name, request_id.encode()) for name in REQUEST_ID_HEADERS]


def served_by_headers(served_by: str) -> list[tuple[bytes, bytes]]:
    """Returns the header that names where the answer comes from: a neuron, or ``upstream:NAME``.
    Returns no header while ``served_by`` is empty: it is not known yet."""
    return [(b"x-helexa-served-by", served_by.encode("latin-1", "replace"))] if served_by else []


def error_headers(error: ApiError) -> list[tuple[bytes, bytes]]:
    """``Retry-After`` in whole seconds, at least 1, where a retry makes sense. SDKs retry every 429
    and 500 unless ``x-should-retry`` is false."""
    headers = []
    is_final = error.status == TOO_MANY_REQUESTS and error.retry_after_s is None
    if is_final or error.code in NOT_REPEATED:
        headers.append((b"x-should-retry", b"false"))
    if error.retry_after_s is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(error.retry_after_s))).encode()))
    if isinstance(error, MethodNotAllowedError):
        headers.append((b"allow", error.allowed.encode()))
    return headers


def page_of(objects: Sequence[dict[str, Any]], limit: int) -> dict[str, Any]:
    """The fields that pages of every dialect have. ``objects`` may be more than ``limit``."""
    data = objects[:limit]
    return {
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(objects) > limit,
    }
