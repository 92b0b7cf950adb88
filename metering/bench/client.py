"""HTTP to the measured servers, and one streamed request in either dialect. Only a socket is
between their clock and ours."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fleet.management.backend import RefusedError, Server
from metering.bench.models import BenchRun
from metering.errors import TargetError

PROBE_TIMEOUT_S = 30.0
MAX_REASON_CHARACTERS = 500
ANTHROPIC = "anthropic"
ANTHROPIC_VERSION = "2023-06-01"

MIN_DECODE_MS = 200.0
MIN_WINDOW_S = 0.2
"""Below these, clocks and batches of frames dominate the figure, not the engine."""
TIMINGS = {
    "helexa_timing": ("prefill_ms", "decode_ms", "prefill_tokens"),
    "timings": ("prompt_ms", "predicted_ms", "prompt_n"),
}
"""The timings' names in answers of helexa and the original system, and of llama.cpp."""
Event = dict[str, Any]


class Http(Server):
    """Thread-safe. Its methods raise ``TargetError``."""

    def __init__(self, url: str, *, headers: Mapping[str, str], timeout_s: float) -> None:
        super().__init__(url, None, timeout_s=timeout_s)
        self._headers |= headers

    def at(self, url: str, *, timeout_s: float | None = None) -> Http:
        return Http(url, headers=self._headers, timeout_s=timeout_s or self._timeout_s)

    def get(self, path: str) -> Any:
        return self.at(self.url, timeout_s=PROBE_TIMEOUT_S).post(path)

    def post(self, path: str, body: Any = None) -> Any:
        with self._refusals():
            return json.loads(self.read(f"/{path}", body))

    def stream(self, path: str, body: Any) -> Iterator[tuple[dict[str, Any], float]]:
        """Yields each event with its seconds since the request was sent."""
        started_s = time.perf_counter()
        with self.open(f"/{path}", body) as response, self._refusals():
            for line in response:
                at_s = time.perf_counter() - started_s
                if line.startswith(b"data:") and b"[DONE]" not in line[:16]:
                    event = json.loads(line[5:])
                    if not isinstance(event, dict):
                        raise ValueError("an event is no JSON object")
                    yield event, at_s

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            with super()._refusals():
                yield
        except RefusedError as error:
            reason = f"HTTP {error.status}: {error}" if error.status else str(error)
            raise TargetError(reason[:MAX_REASON_CHARACTERS], status=error.status) from error


def ask(http: Http, kind: str, model: str, prompt: str, max_tokens: int) -> BenchRun:
    """At a temperature of 0, for the same answer each time. Raises ``TargetError``."""
    path, more = "v1/chat/completions", {"stream_options": {"include_usage": True}}
    if kind == ANTHROPIC:
        path, more = "v1/messages", {}
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        **more,
    }
    started_s = time.perf_counter()
    run = read_answer(kind, http.stream(path, body))
    run.total_s = time.perf_counter() - started_s
    run.max_tokens = max_tokens
    return run


def key_headers(kind: str, key: str | None) -> Mapping[str, str]:
    """helexa's gateway returns the engine's own times for the timing header; others ignore it."""
    if kind == ANTHROPIC:
        version = {"anthropic-version": ANTHROPIC_VERSION}
        return version if key is None else {**version, "x-api-key": key}
    timing = {"x-helexa-timing": "true"}
    return timing if key is None else {**timing, "authorization": f"Bearer {key}"}


def read_answer(kind: str, events: Iterable[tuple[Event, float]]) -> BenchRun:
    """Speeds are by the server's clock, else by the client's, which includes the network. Raises
    ``TargetError`` for an error within the stream."""
    run = BenchRun()
    num_pieces, last_s = 0, 0.0
    for event, at_s in events:
        has_piece = _anthropic(run, event) if kind == ANTHROPIC else _openai(run, event)
        if has_piece:
            num_pieces, last_s = num_pieces + 1, at_s
            run.ttft_s = at_s if run.ttft_s is None else run.ttft_s
        _timing(run, event)
    if run.ttft_s is None:
        raise TargetError("the answer is empty")
    run.completion_tokens = run.completion_tokens or num_pieces
    run.decode_tps = _decode_tps(run, run.completion_tokens, last_s - run.ttft_s)
    run.prefill_tps = _prefill_tps(run, run.ttft_s)
    if run.prefill_ms is not None:
        run.queue_wait_ms = max(0.0, run.ttft_s * 1000 - run.prefill_ms)
    return run


def _decode_tps(run: BenchRun, tokens: int, window_s: float) -> float | None:
    if run.decode_ms is not None and run.decode_ms > MIN_DECODE_MS:
        return tokens / run.decode_ms * 1000
    # The first token is the prefill's.
    return (tokens - 1) / window_s if window_s > MIN_WINDOW_S and tokens > 1 else None


def _prefill_tps(run: BenchRun, ttft_s: float) -> float | None:
    if run.prefill_ms and run.prefill_tokens:
        return run.prefill_tokens / run.prefill_ms * 1000
    computed = (run.prompt_tokens_actual or 0) - (run.cached_tokens or 0)
    return computed / ttft_s if computed > 0 and ttft_s else None


def _openai(run: BenchRun, event: Event) -> bool:
    if error := event.get("error"):
        raise TargetError(_message(error))
    usage = event.get("usage")
    if isinstance(usage, dict):
        details = usage.get("prompt_tokens_details") or {}
        run.prompt_tokens_actual = _whole(usage.get("prompt_tokens"))
        run.completion_tokens = _whole(usage.get("completion_tokens"))
        run.cached_tokens = _whole(details.get("cached_tokens"))
    deltas = [choice.get("delta") or {} for choice in event.get("choices") or []]
    names = ("content", "reasoning_content", "reasoning")
    return any(delta.get(name) for delta in deltas for name in names)


def _anthropic(run: BenchRun, event: Event) -> bool:
    match event.get("type"):
        case "error":
            raise TargetError(_message(event.get("error")))
        case "content_block_delta":
            return (event.get("delta") or {}).get("type") in ("text_delta", "thinking_delta")
        case "message_start" | "message_delta":
            usage = (event.get("message") or event).get("usage") or {}
            if (fresh := _whole(usage.get("input_tokens"))) is not None:
                # Cached tokens are counted beside the rest of the prompt.
                written = _whole(usage.get("cache_creation_input_tokens")) or 0
                run.cached_tokens = _whole(usage.get("cache_read_input_tokens")) or 0
                run.prompt_tokens_actual = fresh + run.cached_tokens + written
            if (tokens := _whole(usage.get("output_tokens"))) is not None:
                run.completion_tokens = tokens
    return False


def _timing(run: BenchRun, event: Event) -> None:
    usage = event.get("usage")
    places = (event, usage if isinstance(usage, dict) else {})
    for key, (prefill_ms, decode_ms, prefill_tokens) in TIMINGS.items():
        found = next((place[key] for place in places if isinstance(place.get(key), dict)), None)
        if found is not None:
            run.timing = BenchRun.Timing.SERVER
            run.prefill_ms = _number(found.get(prefill_ms))
            run.decode_ms = _number(found.get(decode_ms))
            run.prefill_tokens = _whole(found.get(prefill_tokens))
            return


def _message(error: Any) -> str:
    return str(error.get("message", error) if isinstance(error, dict) else error)


def _whole(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _number(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and value >= 0 else None
