"""One question in either dialect, streamed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from metering.bench.client.http import Http
from metering.bench.errors import SampleFailedError
from metering.bench.sweeps.answers import Answer, AnthropicFold, OpenAiFold

ANTHROPIC_VERSION = "2023-06-01"
TIMING_HEADER = {"x-helexa-timing": "true"}
"""Asks helexa's gateway for its engine's own times; servers that do not know it skip it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Temperature is 0: the same answer each time, as far as a server can."""

    model: str
    prompt: str
    max_tokens: int


class Asker(Protocol):
    def ask(self, ask: Ask) -> Answer:
        """Raises ``SampleFailedError``."""
        ...


class OpenAiAsker:
    def __init__(self, http: Http, base_url: str) -> None:
        self._http = http
        self._base_url = v1_url(base_url)

    def ask(self, ask: Ask) -> Answer:
        body = _streamed_body(ask) | {"stream_options": {"include_usage": True}}
        fold = OpenAiFold()
        return _streamed(self._http, f"{self._base_url}/chat/completions", body, fold)


class AnthropicAsker:
    def __init__(self, http: Http, base_url: str) -> None:
        self._http = http
        self._base_url = v1_url(base_url)

    def ask(self, ask: Ask) -> Answer:
        body = _streamed_body(ask)
        return _streamed(self._http, f"{self._base_url}/messages", body, AnthropicFold())


def _streamed_body(ask: Ask) -> dict[str, Any]:
    return {
        "model": ask.model,
        "messages": [{"role": "user", "content": ask.prompt}],
        "max_tokens": ask.max_tokens,
        "temperature": 0,
        "stream": True,
    }


def _streamed(http: Http, url: str, body: Any, fold: OpenAiFold | AnthropicFold) -> Answer:
    started_s = time.perf_counter()
    for event, at_s in http.stream(url, body):
        fold.feed(event, at_s)
    answer = fold.end(time.perf_counter() - started_s)
    if answer.num_pieces == 0:
        raise SampleFailedError("the answer is empty")
    return answer


def v1_url(base_url: str) -> str:
    base = base_url.rstrip("/")
    return base if base.endswith("/v1") else f"{base}/v1"


def key_headers(kind: str, key: str | None) -> Mapping[str, str]:
    if kind == "anthropic":
        version = {"anthropic-version": ANTHROPIC_VERSION}
        return version if key is None else {**version, "x-api-key": key}
    return TIMING_HEADER if key is None else {**TIMING_HEADER, "authorization": f"Bearer {key}"}
