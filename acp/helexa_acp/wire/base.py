"""What every wire API takes and gives: one request, and the events of its answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from helexa_acp.config import Endpoint
from helexa_acp.conversation.history import Image, Turn, Usage
from helexa_acp.proxies import open_http

if TYPE_CHECKING:
    import httpx2

TIMEOUT_S = 600.0
CONNECT_TIMEOUT_S = 10.0
HEADERS = {"x-include-thinking": "true"}
NO_KEY = "none"
"""The SDKs insist on a key; without one they would take one from the environment."""
Reason = Literal["stop", "length", "refusal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    name: str
    description: str
    parameters: dict[str, Any]
    """A JSON schema of type object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    model: str
    system: str
    turns: tuple[Turn, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int | None = None
    reasoning_effort: str | None = None
    asks_for_thinking: bool = True
    """Whether an API that thinks only when asked to is asked to."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ThoughtDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ThoughtSealed:
    """The thought that has come so far is whole; ``sealed`` goes back with it."""

    sealed: Any


@dataclass(frozen=True, slots=True)
class ImageMade:
    image: Image


@dataclass(frozen=True, slots=True)
class CallMade:
    """``arguments`` is text as the model wrote it: JSON, or meant to be."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Finished:
    reason: Reason
    usage: Usage


WireEvent = TextDelta | ThoughtDelta | ThoughtSealed | ImageMade | CallMade | Finished


def sdk_http(endpoint: Endpoint) -> httpx2.AsyncClient:
    """The HTTP client of an endpoint's SDK. Raises ConfigError."""
    import httpx2  # takes its time to import

    timeout = httpx2.Timeout(TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
    return open_http(endpoint.base_url, timeout=timeout, follow_redirects=True)


class Wire(Protocol):
    def stream(self, request: ModelRequest) -> AsyncGenerator[WireEvent, None]:
        """The answer's events; the last one is Finished. Closing the generator, or cancelling who
        waits on it, ends the request at the endpoint. Raises EndpointError."""

    async def close(self) -> None: ...
