"""Requests with JSON, and answers that are JSON or server-sent events."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

from inference import proxies
from metering.bench.errors import SampleFailedError, TargetUnreachableError

PROBE_TIMEOUT_S = 30.0
MAX_REASON_CHARACTERS = 500


class Http:
    """An HTTP client of one endpoint. ``headers`` are sent with everything. Many threads may use
    one."""

    def __init__(self, *, headers: Mapping[str, str], timeout_s: float) -> None:
        self._headers = {"content-type": "application/json", **headers}
        self._timeout_s = timeout_s

    def get(self, url: str) -> Any:
        """Raises ``TargetUnreachableError``."""
        try:
            with self._open("GET", url, None, PROBE_TIMEOUT_S) as response:
                return json.load(response)
        except (SampleFailedError, ValueError) as error:
            raise TargetUnreachableError(f"{url}: {error}") from error

    def post(self, url: str, body: Any) -> Any:
        """Raises ``SampleFailedError``."""
        with self._open("POST", url, body, self._timeout_s) as response:
            try:
                return json.load(response)
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise SampleFailedError(f"{url}: {error}") from error

    def stream(self, url: str, body: Any) -> Iterator[tuple[dict[str, Any], float]]:
        """Each event and how long after the request was sent it came. Raises
        ``SampleFailedError``."""
        started_s = time.perf_counter()
        with self._open("POST", url, body, self._timeout_s) as response:
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

    def _open(self, method: str, url: str, body: Any, timeout_s: float) -> Any:
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
