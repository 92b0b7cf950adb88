"""Access to an upstream: its client's options, which the gateway's streams share, and one bounded
exchange for discovery and probes.

A client follows no redirect and reads no proxy from the environment. Compressed bodies are not
decoded, so none can grow in memory.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fleet.errors import UpstreamUnavailableError
from fleet.upstreams.entry import UpstreamEntry

if TYPE_CHECKING:
    import httpx2

ANTHROPIC_VERSION = "2023-06-01"
FIRST_REDIRECT, FIRST_ERROR = 300, 400


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    content_type: str
    body: bytes

    @property
    def is_success(self) -> bool:
        return self.status < FIRST_REDIRECT

    def json(self) -> Any:
        """``None`` for a body that is not JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    def table(self) -> dict[str, Any]:
        """Empty for a body that is no JSON object."""
        found = self.json()
        return found if isinstance(found, dict) else {}


def headers_of(entry: UpstreamEntry, secret: str) -> dict[str, str]:
    headers = {"accept-encoding": "identity", "user-agent": "helexa"}
    key = {"authorization": f"Bearer {secret}"}
    if entry.dialect == "anthropic":
        headers["anthropic-version"] = ANTHROPIC_VERSION
        key = {"x-api-key": secret}
    return headers | (key if secret else {})


def unversioned(url: str) -> str:
    """An upstream's URL without its version: vLLM, SGLang, llama-server and helexa have
    ``/tokenize`` beside ``/v1``. Pure."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path.removesuffix('/v1')}"


def client_options(entry: UpstreamEntry, secret: str) -> dict[str, Any]:
    """Options of ``httpx2.Client`` and ``httpx2.AsyncClient``, beside timeouts and limits. Reads
    the CA file. Raises ``UpstreamUnavailableError``."""
    return {
        "headers": headers_of(entry, secret),
        "verify": _tls(entry),
        "proxy": entry.proxy or None,
        "trust_env": False,
        "follow_redirects": False,
    }


@contextmanager
def opened(entry: UpstreamEntry, secret: str) -> Iterator[httpx2.Client]:
    """A client for a few exchanges in a row. Raises ``UpstreamUnavailableError``."""
    import httpx2

    with httpx2.Client(**client_options(entry, secret)) as client:
        yield client


def exchange(
    client: httpx2.Client,
    method: str,
    url: str,
    *,
    timeout_s: float,
    max_bytes: int,
    **sent: Any,
) -> Answer:
    """Sends one request with ``sent``, the body as httpx2 names it. Its answer has at most
    ``max_bytes`` and must be complete within ``timeout_s``. Raises ``UpstreamUnavailableError``,
    whose message has nothing that the endpoint sent."""
    import httpx2

    until_s = time.monotonic() + timeout_s
    try:
        with client.stream(method, url, timeout=timeout_s, **sent) as response:
            if FIRST_REDIRECT <= response.status_code < FIRST_ERROR:
                raise UpstreamUnavailableError(
                    f"it answers with a redirect ({response.status_code}), which is not followed: "
                    "give the URL that it leads to"
                )
            content = bytearray()
            for part in response.iter_raw():
                content += part
                if len(content) > max_bytes:
                    raise UpstreamUnavailableError(f"it answers more than {max_bytes:,} bytes")
                if time.monotonic() > until_s:
                    raise UpstreamUnavailableError(f"its answer takes more than {timeout_s:g} s")
            content_type = response.headers.get("content-type", "")
            return Answer(response.status_code, content_type, bytes(content))
    except httpx2.TimeoutException:
        raise UpstreamUnavailableError(f"it does not answer within {timeout_s:g} s") from None
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        raise UpstreamUnavailableError(f"it cannot be reached ({type(error).__name__})") from None


def _tls(entry: UpstreamEntry) -> ssl.SSLContext:
    context = ssl.create_default_context()
    try:
        if entry.ca_file:
            context.load_verify_locations(entry.ca_file)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or type(error).__name__
        raise UpstreamUnavailableError(
            f"its CA file {entry.ca_file} cannot be read here ({reason})"
        ) from None
    return context
