"""The interface of a dialect, a request's context beside its body, and shared headers and pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from inference.protocol.events import Event
from inference.protocol.generation import GenerationRequest
from inference.wire.errors import InvalidRequestError

WAITING_COMMENT = b": waiting\n\n"
"""Readers skip comments; in every dialect a stream's first event must come first."""


def waiting_comment(words: str) -> bytes:
    return f": waiting: {' '.join(words.split())}\n\n".encode()


_LINE_ENDS = (
    ("\N{NEXT LINE}".encode(), rb"\u0085"),
    ("\N{LINE SEPARATOR}".encode(), rb"\u2028"),
    ("\N{PARAGRAPH SEPARATOR}".encode(), rb"\u2029"),
)


def with_escaped_line_ends(frames: bytes) -> bytes:
    """Escapes line ends that JSON strings may contain (RFC 8259, section 7): ``str.splitlines`` and
    httpx' ``iter_lines``, which Ollama's client uses, would cut an event there."""
    if frames.isascii():
        return frames
    for line_end, escape in _LINE_ENDS:
        frames = frames.replace(line_end, escape)
    return frames


UnixClock = Callable[[], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """``headers`` have lower-case names; of duplicates the last counts."""

    headers: Mapping[str, str] = field(default_factory=dict)
    always_include_usage: bool = False


NO_CONTEXT = RequestContext()


class Encoder(Protocol):
    """Encodes one answer. A body encoder returns nothing until the last event. Encoders of large
    answers also have ``parts``, which yields the result of ``encode`` in pieces."""

    def encode(self, event: Event) -> bytes: ...


class ParsedRequest(Protocol):
    @property
    def generation(self) -> GenerationRequest: ...
    @property
    def stream(self) -> bool: ...
    def stream_encoder(self, *, request_id: str, clock: UnixClock) -> Encoder: ...
    def body_encoder(self, *, request_id: str, clock: UnixClock) -> Encoder: ...


class Parse(Protocol):
    def __call__(self, body: bytes, context: RequestContext, /) -> ParsedRequest: ...


REQUEST_ID_HEADERS = (b"x-request-id", b"request-id")
"""OpenAI's clients read the first, Anthropic's the second."""


def request_id_headers(request_id: str) -> list[tuple[bytes, bytes]]:
    return [(name, request_id.encode()) for name in REQUEST_ID_HEADERS]


def served_by_headers(served_by: str) -> list[tuple[bytes, bytes]]:
    """``served_by``: a neuron or ``upstream:NAME``; empty while unknown."""
    return [(b"x-helexa-served-by", served_by.encode("latin-1", "replace"))] if served_by else []


def page_limit(query: Mapping[str, str], default: int, most: int) -> int:
    limit = query.get("limit", str(default))
    is_number = limit.isascii() and limit.isdigit() and len(limit) <= len(str(most))
    if not is_number or not 1 <= int(limit) <= most:
        raise InvalidRequestError(f"'limit' must be from 1 up to {most}.", param="limit")
    return int(limit)


def page_of(objects: Sequence[dict[str, Any]], limit: int) -> dict[str, Any]:
    data = objects[:limit]
    return {
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(objects) > limit,
    }
