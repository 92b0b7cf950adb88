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
from typing import Any, Protocol

from inference import proxies
from metering.bench.answers import Answer, feed_anthropic, feed_openai
from metering.bench.errors import SampleFailedError, TargetUnreachableError

PROBE_TIMEOUT_S = 30.0
MAX_REASON_CHARACTERS = 500
ANTHROPIC = "anthropic"
ANTHROPIC_VERSION = "2023-06-01"
TIMING_HEADER = {"x-helexa-timing": "true"}
"""Requests the engine's own times from helexa's gateway; other servers ignore it."""


class Http:
    """An HTTP client of one server, which sends ``headers`` with everything. Thread-safe."""

    def __init__(self, url: str, *, headers: Mapping[str, str], timeout_s: float) -> None:
        self._url = url.rstrip("/")
        self._headers = {"content-type": "application/json", **headers}
        self._timeout_s = timeout_s

    def at(self, url: str) -> Http:
        return Http(url, headers=self._headers, timeout_s=self._timeout_s)

    def get(self, path: str) -> Any:
        """Raises ``TargetUnreachableError``."""
        try:
            with self._open("GET", path, None, PROBE_TIMEOUT_S) as response:
                return json.load(response)
        except (SampleFailedError, ValueError) as error:
            raise TargetUnreachableError(f"{self._url}/{path}: {error}") from error

    def post(self, path: str, body: Any) -> Any:
        """Raises ``SampleFailedError``."""
        with self._open("POST", path, body, self._timeout_s) as response:
            try:
                return json.load(response)
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise SampleFailedError(f"{self._url}/{path}: {error}") from error

    def stream(self, path: str, body: Any) -> Iterator[tuple[dict[str, Any], float]]:
        """Each event, and its time in seconds since the request was sent. Raises
        ``SampleFailedError``."""
        started_s = time.perf_counter()
        with self._open("POST", path, body, self._timeout_s) as response:
            try:
                for line in response:
                    at_s = time.perf_counter() - started_s
                    if line.startswith(b"data:") and b"[DONE]" not in line[:16]:
                        event = json.loads(line[5:])
                        if not isinstance(event, dict):
                            raise ValueError("an event is no JSON object")
                        yield event, at_s
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise SampleFailedError(f"the stream broke off: {error}") from error

    def _open(self, method: str, path: str, body: Any, timeout_s: float) -> Any:
        url = f"{self._url}/{path}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data=data, headers=self._headers, method=method)
        try:
            return proxies.open_url(request, timeout=timeout_s)
        except urllib.error.HTTPError as error:
            with error:
                raise SampleFailedError(_reason(error), status=error.code) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise SampleFailedError(f"no answer: {error}") from error


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


class Asker(Protocol):
    def ask(self, model: str, prompt: str, max_tokens: int) -> Answer:
        """Raises ``SampleFailedError``."""
        ...


class HttpAsker:
    """Sends requests at a temperature of 0: the same answer each time, as far as possible."""

    def __init__(self, http: Http, kind: str = "openai") -> None:
        self._http = http
        self._is_anthropic = kind == ANTHROPIC

    def ask(self, model: str, prompt: str, max_tokens: int) -> Answer:
        path = "messages" if self._is_anthropic else "chat/completions"
        feed = feed_anthropic if self._is_anthropic else feed_openai
        body = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            **({} if self._is_anthropic else {"stream_options": {"include_usage": True}}),
        }
        answer = Answer()
        started_s = time.perf_counter()
        for event, at_s in self._http.stream(f"v1/{path}", body):
            feed(answer, event, at_s)
        answer.total_s = time.perf_counter() - started_s
        if answer.num_pieces == 0:
            raise SampleFailedError("the answer is empty")
        return answer


def key_headers(kind: str, key: str | None) -> Mapping[str, str]:
    if kind == ANTHROPIC:
        version = {"anthropic-version": ANTHROPIC_VERSION}
        return version if key is None else {**version, "x-api-key": key}
    return TIMING_HEADER if key is None else {**TIMING_HEADER, "authorization": f"Bearer {key}"}
