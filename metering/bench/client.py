"""HTTP to the measured servers, and one streamed request in either dialect.

Uses the standard library, so that only a socket is between their clock and ours.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from inference import proxies
from metering.bench.answers import Answer, feed_anthropic, feed_openai
from metering.bench.errors import TargetError

PROBE_TIMEOUT_S = 30.0
MAX_REASON_CHARACTERS = 500
ANTHROPIC = "anthropic"
ANTHROPIC_VERSION = "2023-06-01"


class Http:
    """An HTTP client of one server, which sends ``headers`` with everything. Thread-safe. Its
    methods raise ``TargetError``."""

    def __init__(self, url: str, *, headers: Mapping[str, str], timeout_s: float) -> None:
        self.url = url.rstrip("/")
        self._headers = {"content-type": "application/json", **headers}
        self._timeout_s = timeout_s

    def at(self, url: str) -> Http:
        return Http(url, headers=self._headers, timeout_s=self._timeout_s)

    def get(self, path: str) -> Any:
        try:
            with self._open("GET", path, None, PROBE_TIMEOUT_S) as response:
                return json.load(response)
        except (TargetError, ValueError) as error:
            raise TargetError(f"{self.url}/{path}: {error}") from error

    def post(self, path: str, body: Any) -> Any:
        with (
            self._open("POST", path, body, self._timeout_s) as response,
            _failures(f"{self.url}/{path}"),
        ):
            return json.load(response)

    def stream(self, path: str, body: Any) -> Iterator[tuple[dict[str, Any], float]]:
        """Each event, and its time in seconds since the request was sent."""
        started_s = time.perf_counter()
        with (
            self._open("POST", path, body, self._timeout_s) as response,
            _failures("the stream broke off"),
        ):
            for line in response:
                at_s = time.perf_counter() - started_s
                if line.startswith(b"data:") and b"[DONE]" not in line[:16]:
                    event = json.loads(line[5:])
                    if not isinstance(event, dict):
                        raise ValueError("an event is no JSON object")
                    yield event, at_s

    def _open(self, method: str, path: str, body: Any, timeout_s: float) -> Any:
        with _failures("no answer"):
            request = urllib.request.Request(
                f"{self.url}/{path}",
                data=None if body is None else json.dumps(body).encode(),
                headers=self._headers,
                method=method,
            )
            return proxies.open_url(request, timeout=timeout_s)


@contextmanager
def _failures(what: str) -> Iterator[None]:
    try:
        yield
    except urllib.error.HTTPError as error:
        with error:
            raise TargetError(_reason(error), status=error.code) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise TargetError(f"{what}: {error}") from error


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        content = error.read(64 * 1024)
    except (OSError, http.client.HTTPException):
        content = b""
    try:
        body = json.loads(content)
        message = body.get("error", body.get("detail"))
        if isinstance(message, dict):
            message = message.get("message") or message.get("cause")
    except (ValueError, AttributeError):
        message = None
    return f"HTTP {error.code}: {message or 'no reason given'}"[:MAX_REASON_CHARACTERS]


def ask(http: Http, kind: str, model: str, prompt: str, max_tokens: int) -> Answer:
    """At a temperature of 0: the same answer each time, as far as possible. Raises
    ``TargetError``."""
    is_anthropic = kind == ANTHROPIC
    feed = feed_anthropic if is_anthropic else feed_openai
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        **({} if is_anthropic else {"stream_options": {"include_usage": True}}),
    }
    answer = Answer()
    started_s = time.perf_counter()
    for event, at_s in http.stream("v1/messages" if is_anthropic else "v1/chat/completions", body):
        feed(answer, event, at_s)
    answer.total_s = time.perf_counter() - started_s
    if answer.num_pieces == 0:
        raise TargetError("the answer is empty")
    return answer


def key_headers(kind: str, key: str | None) -> Mapping[str, str]:
    """Those of a kind of target. Helexa's gateway returns the engine's own times where the timing
    header is sent; other servers ignore it."""
    if kind == ANTHROPIC:
        version = {"anthropic-version": ANTHROPIC_VERSION}
        return version if key is None else {**version, "x-api-key": key}
    timing = {"x-helexa-timing": "true"}
    return timing if key is None else {**timing, "authorization": f"Bearer {key}"}
