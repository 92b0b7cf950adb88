"""Streamed answers of both dialects, read into one ``Answer`` with its times. Pure: moments are
arguments, in seconds since the request was sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from metering.bench.errors import TargetError

MIN_DECODE_MS = 200.0
MIN_WINDOW_S = 0.2
"""Below these, clocks and batches of frames dominate the figure, not the engine."""
OURS = ("prefill_ms", "decode_ms", "prefill_tokens")
LLAMA_CPP = ("prompt_ms", "predicted_ms", "prompt_n")


@dataclass(slots=True, kw_only=True)
class Answer:
    num_pieces: int = 0
    first_s: float | None = None
    last_s: float | None = None
    total_s: float = 0.0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    has_timing: bool = False
    """Whether the server reported times of its own: the next three."""
    prefill_ms: float | None = None
    decode_ms: float | None = None
    prefill_tokens: int | None = None

    def note_piece(self, at_s: float) -> None:
        self.num_pieces += 1
        self.first_s = at_s if self.first_s is None else self.first_s
        self.last_s = at_s

    def note_timing(self, event: dict[str, Any]) -> None:
        """``helexa_timing`` of helexa and the original system, or llama.cpp's ``timings``."""
        usage = event.get("usage")
        within = usage.get("helexa_timing") if isinstance(usage, dict) else None
        ours = event.get("helexa_timing") or within
        found, names = (ours, OURS) if isinstance(ours, dict) else (event.get("timings"), LLAMA_CPP)
        if isinstance(found, dict):
            prefill_ms, decode_ms, prefill_tokens = map(found.get, names)
            self.has_timing = True
            self.prefill_ms, self.decode_ms = _number(prefill_ms), _number(decode_ms)
            self.prefill_tokens = _whole(prefill_tokens)

    @property
    def num_tokens(self) -> int:
        return self.completion_tokens or self.num_pieces

    @property
    def decode_tps(self) -> float | None:
        """Tokens per second by the server's clock, else by the client's. The first token is the
        prefill's."""
        if self.decode_ms is not None and self.decode_ms > MIN_DECODE_MS:
            return self.num_tokens / self.decode_ms * 1000
        if self.first_s is None or self.last_s is None:
            return None
        window_s, num_decoded = self.last_s - self.first_s, self.num_tokens - 1
        return num_decoded / window_s if window_s > MIN_WINDOW_S and num_decoded > 0 else None

    @property
    def prefill_tps(self) -> float | None:
        """Tokens per second by the server's clock, else by the client's, which includes the
        network."""
        if self.prefill_ms and self.prefill_tokens:
            return self.prefill_tokens / self.prefill_ms * 1000
        computed = (self.prompt_tokens or 0) - (self.cached_tokens or 0)
        return computed / self.first_s if computed > 0 and self.first_s else None

    @property
    def queue_wait_ms(self) -> float | None:
        if self.first_s is None or self.prefill_ms is None:
            return None
        return max(0.0, self.first_s * 1000 - self.prefill_ms)


def feed_openai(answer: Answer, event: dict[str, Any], at_s: float) -> None:
    """A chunk of ``/v1/chat/completions``. Raises ``TargetError`` for an error within the
    stream."""
    if error := event.get("error"):
        raise TargetError(_message(error))
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
    answer.note_timing(event)


def feed_anthropic(answer: Answer, event: dict[str, Any], at_s: float) -> None:
    """An event of ``/v1/messages``. Raises ``TargetError`` for an error within the stream.
    Anthropic counts cached tokens beside the rest of the prompt."""
    match event.get("type"):
        case "error":
            raise TargetError(_message(event.get("error")))
        case "content_block_delta":
            if (event.get("delta") or {}).get("type") in ("text_delta", "thinking_delta"):
                answer.note_piece(at_s)
        case "message_start" | "message_delta":
            usage = (event.get("message") or event).get("usage") or {}
            fresh, cached, written = (
                _whole(usage.get(name))
                for name in (
                    "input_tokens",
                    "cache_read_input_tokens",
                    "cache_creation_input_tokens",
                )
            )
            if fresh is not None:
                answer.cached_tokens = cached or 0
                answer.prompt_tokens = fresh + answer.cached_tokens + (written or 0)
            tokens = _whole(usage.get("output_tokens"))
            answer.completion_tokens = answer.completion_tokens if tokens is None else tokens
    answer.note_timing(event)


def _message(error: Any) -> str:
    return str(error.get("message", error) if isinstance(error, dict) else error)


def _whole(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _number(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and value >= 0 else None
