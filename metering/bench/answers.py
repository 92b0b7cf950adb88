"""Streamed answers of both dialects, read into one ``Answer`` with its times. Pure: moments are
arguments, in seconds since the request was sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from metering.bench.errors import SampleFailedError

MIN_DECODE_MS = 200.0
MIN_WINDOW_S = 0.2
"""Below these, clocks and batches of frames dominate the figure, not the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTiming:
    prefill_ms: float | None = None
    decode_ms: float | None = None
    prefill_tokens: int | None = None


@dataclass(slots=True, kw_only=True)
class Answer:
    num_pieces: int = 0
    first_s: float | None = None
    last_s: float | None = None
    total_s: float = 0.0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    timing: ServerTiming | None = None

    def note_piece(self, at_s: float) -> None:
        self.num_pieces += 1
        self.first_s = at_s if self.first_s is None else self.first_s
        self.last_s = at_s

    @property
    def decode_tps(self) -> float | None:
        """Tokens per second by the server's clock, else by the client's. The first token is the
        prefill's."""
        tokens = self.completion_tokens or self.num_pieces
        decode_ms = self.timing.decode_ms if self.timing else None
        if decode_ms is not None and decode_ms > MIN_DECODE_MS:
            return tokens / decode_ms * 1000
        if self.first_s is None or self.last_s is None:
            return None
        window_s = self.last_s - self.first_s
        return (tokens - 1) / window_s if window_s > MIN_WINDOW_S and tokens > 1 else None

    @property
    def prefill_tps(self) -> float | None:
        """Tokens per second by the server's clock, else by the client's, which includes the
        network."""
        if self.timing and self.timing.prefill_ms and self.timing.prefill_tokens:
            return self.timing.prefill_tokens / self.timing.prefill_ms * 1000
        computed = (self.prompt_tokens or 0) - (self.cached_tokens or 0)
        return computed / self.first_s if computed > 0 and self.first_s else None

    @property
    def queue_wait_ms(self) -> float | None:
        if self.first_s is None or self.timing is None or self.timing.prefill_ms is None:
            return None
        return max(0.0, self.first_s * 1000 - self.timing.prefill_ms)


def feed_openai(answer: Answer, event: dict[str, Any], at_s: float) -> None:
    """A chunk of ``/v1/chat/completions``. Raises ``SampleFailedError`` for an error within the
    stream."""
    if error := event.get("error"):
        raise SampleFailedError(_message(error))
    for choice in event.get("choices") or []:
        delta = choice.get("delta") or {}
        if any(delta.get(name) for name in ("content", "reasoning_content", "reasoning")):
            answer.note_piece(at_s)
    usage = event.get("usage")
    if isinstance(usage, dict):
        details = usage.get("prompt_tokens_details") or {}
        answer.prompt_tokens = _whole(usage.get("prompt_tokens"))
        answer.completion_tokens = _whole(usage.get("completion_tokens"))
        answer.cached_tokens = _whole(details.get("cached_tokens"))
    answer.timing = timing_of(event) or answer.timing


def feed_anthropic(answer: Answer, event: dict[str, Any], at_s: float) -> None:
    """An event of ``/v1/messages``. Raises ``SampleFailedError`` for an error within the
    stream."""
    match event.get("type"):
        case "error":
            raise SampleFailedError(_message(event.get("error")))
        case "message_start":
            _note_anthropic_usage(answer, (event.get("message") or {}).get("usage") or {})
        case "content_block_delta":
            if (event.get("delta") or {}).get("type") in ("text_delta", "thinking_delta"):
                answer.note_piece(at_s)
        case "message_delta":
            _note_anthropic_usage(answer, event.get("usage") or {})
    answer.timing = timing_of(event) or answer.timing


def _note_anthropic_usage(answer: Answer, usage: dict[str, Any]) -> None:
    """Anthropic counts cached tokens beside the rest of the prompt."""
    if (fresh := _whole(usage.get("input_tokens"))) is not None:
        cached = _whole(usage.get("cache_read_input_tokens")) or 0
        written = _whole(usage.get("cache_creation_input_tokens")) or 0
        answer.prompt_tokens = fresh + cached + written
        answer.cached_tokens = cached
    if (tokens := _whole(usage.get("output_tokens"))) is not None:
        answer.completion_tokens = tokens


OURS = ("prefill_ms", "decode_ms", "prefill_tokens")
LLAMA_CPP = ("prompt_ms", "predicted_ms", "prompt_n")


def timing_of(event: dict[str, Any]) -> ServerTiming | None:
    """``helexa_timing`` of helexa and the original system, or llama.cpp's ``timings``."""
    usage = event.get("usage")
    within = usage.get("helexa_timing") if isinstance(usage, dict) else None
    for found, (prefill_ms, decode_ms, prefill_tokens) in (
        (event.get("helexa_timing") or within, OURS),
        (event.get("timings"), LLAMA_CPP),
    ):
        if isinstance(found, dict):
            return ServerTiming(
                prefill_ms=_number(found.get(prefill_ms)),
                decode_ms=_number(found.get(decode_ms)),
                prefill_tokens=_whole(found.get(prefill_tokens)),
            )
    return None


def _message(error: Any) -> str:
    return str(error.get("message", error) if isinstance(error, dict) else error)


def _whole(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _number(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and value >= 0 else None
