"""helexa through the HTTP API of a running server. A client library's objects for each event would
cost as much as the event cost the server."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from benchmarks.subjects import DECODE_OUTPUT_TOKENS, tokens_per_s_together

LIBRARIES = None
REQUEST_TIMEOUT_S = 600
EVENT = b"data: {"


class HelexaHttp:
    """``/v1/completions`` with token-id prompts, greedy, end-of-sequence ignored, streaming."""

    keeps_prefixes = True

    def __init__(self, url: str, model: str) -> None:
        self._address = urlsplit(url).netloc
        self._model = model

    def describe(self) -> str:
        return f"helexa over HTTP ({self._model})"

    def decode(self, prompts: list[list[int]]) -> float:
        with ThreadPoolExecutor(len(prompts)) as pool:
            streams = list(pool.map(lambda p: self._stream(p, 1 + DECODE_OUTPUT_TOKENS), prompts))
        return tokens_per_s_together(streams)

    def first_token_s(self, prompt: list[int]) -> float:
        sent_s = time.perf_counter()
        return self._stream(prompt, 1)[0] - sent_s

    def close(self) -> None:
        pass

    def _stream(self, prompt: list[int], max_tokens: int) -> list[float]:
        """In seconds; a token without text comes with the next that has some."""
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        with closing(
            http.client.HTTPConnection(self._address, timeout=REQUEST_TIMEOUT_S)
        ) as connection:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            events = list(_events(connection.getresponse()))
        tokens: list[float] = []
        for arrived, event in events:
            num_tokens = _num_tokens(event)
            tokens += [arrived] * (num_tokens - len(tokens))
        if len(tokens) != max_tokens:
            raise RuntimeError(f"asked for {max_tokens} tokens and got {len(tokens)}")
        return tokens


def _events(response: http.client.HTTPResponse) -> Iterator[tuple[float, bytes]]:
    """Clock readings and raw events, which are parsed afterwards."""
    if response.status != http.client.OK:
        raise RuntimeError(f"HTTP {response.status}: {response.read(1000)!r}")
    while line := response.readline():
        if line.startswith(EVENT):
            yield time.perf_counter(), line


def _num_tokens(event: bytes) -> int:
    chunk: dict[str, Any] = json.loads(event.removeprefix(b"data: "))
    if "error" in chunk:
        raise RuntimeError(chunk["error"]["message"])
    return int(chunk["usage"]["completion_tokens"])


open_subject = HelexaHttp
