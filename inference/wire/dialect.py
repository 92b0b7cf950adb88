"""The interface of a dialect, and the context that a dialect gets beside the body.

    parse(body, context) ─▶ ParsedRequest ─▶ stream_encoder | body_encoder ─▶ encode(event) ─▶ bytes

A dialect's module of errors fits ``ErrorDialect`` by having these names. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from inference.protocol.events import Event
from inference.protocol.generation import GenerationRequest
from inference.wire.errors import ApiError

WAITING_COMMENT = b": waiting\n\n"
"""A line that readers of server-sent events skip. Sent while a stream has not begun: in every
dialect its first event must come first."""


def waiting_comment(words: str) -> bytes:
    """The same with the reason for the wait, on one line."""
    return f": waiting: {' '.join(words.split())}\n\n".encode()


UnixClock = Callable[[], int]
"""Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """``headers`` have lower-case names; of a name given twice the last counts."""

    headers: Mapping[str, str] = field(default_factory=dict)
    always_include_usage: bool = False
    """An operator's setting: streams report their usage whether or not the client asked."""


NO_CONTEXT = RequestContext()


class Encoder(Protocol):
    """Stateful, for one answer. A body encoder gives nothing until the last event."""

    def encode(self, event: Event) -> bytes: ...


@runtime_checkable
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
    def error_frame(self, error: ApiError, *, request_id: str) -> bytes:
        """The last event of a stream that broke."""
        ...
