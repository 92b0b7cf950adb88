"""What a delta costs to encode, in each dialect, on one core: the gateway's work for every event.

``python -m benchmarks.gateway.encoding`` prints it alone; ``scripts/bench`` with the rest.
A new dialect adds its line to ``DIALECTS``.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import orjson

from inference.protocol.events import (
    Accepted,
    Delta,
    Event,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from inference.wire.anthropic import messages as anthropic_messages
from inference.wire.dialect import NO_CONTEXT, Encoder, Parse
from inference.wire.ollama import chat as ollama_chat
from inference.wire.ollama import generate as ollama_generate
from inference.wire.openai.chat import request as openai_chat
from inference.wire.openai.completions import request as openai_completions
from inference.wire.openai.responses import request as openai_responses

ROUNDS = 50
EVENTS_PER_ROUND = 100
REQUEST_ID = "0123456789abcdef0123456789abcdef"
CREATED_UNIX_S = 1_700_000_000

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@dataclass(frozen=True, slots=True)
class Dialect:
    """``request`` asks for a stream that shows everything its answers can hold."""

    parse: Parse
    request: dict[str, Any]

    def encoder(self) -> Encoder:
        body = orjson.dumps({"model": "tiny", "stream": True, **self.request})
        request = self.parse(body, NO_CONTEXT)
        return request.stream_encoder(request_id=REQUEST_ID, clock=lambda: CREATED_UNIX_S)


DIALECTS = {
    "anthropic_messages": Dialect(
        anthropic_messages.parse,
        {
            "messages": QUESTION,
            "max_tokens": 4096,
            "thinking": {"type": "enabled", "budget_tokens": 1024},
        },
    ),
    "ollama_chat": Dialect(ollama_chat.parse, {"messages": QUESTION, "think": True}),
    "ollama_generate": Dialect(ollama_generate.parse, {"prompt": "Capital of France?"}),
    "openai_chat": Dialect(openai_chat.parse, {"messages": QUESTION, "include_reasoning": True}),
    "openai_completions": Dialect(openai_completions.parse, {"prompt": "The capital of France is"}),
    "openai_responses": Dialect(openai_responses.parse, {"input": QUESTION}),
}


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an answer: what opens it, the delta that is timed, what closes it."""

    delta: Event
    before: tuple[Event, ...] = ()
    after: tuple[Event, ...] = ()


PARTS = {
    "reasoning": Part(
        ReasoningDelta(request_id=REQUEST_ID, text=" therefore"),
        before=(ReasoningDelta(request_id=REQUEST_ID, text="", opens="<think>"),),
        after=(ReasoningDelta(request_id=REQUEST_ID, text="", closes="</think>"),),
    ),
    "text": Part(Delta(request_id=REQUEST_ID, text=" capital")),
    "tool arguments": Part(
        ToolCallDelta(request_id=REQUEST_ID, arguments='"city": '),
        before=(ToolCallStarted(request_id=REQUEST_ID, call_id="call_0123", name="get_weather"),),
    ),
}
"""The parts of an answer, in the order in which it has them."""


def us_per_delta(dialect: Dialect) -> dict[str, float]:
    """Median microseconds for one delta of each part that the dialect shows."""
    encoder = dialect.encoder()
    encoder.encode(Accepted(request_id=REQUEST_ID, prompt_tokens=7))
    costs = {}
    for name, part in PARTS.items():
        for event in part.before:
            encoder.encode(event)
        if encoder.encode(part.delta):
            costs[name] = _median_us(encoder, part.delta)
        for event in part.after:
            encoder.encode(event)
    return costs


def _median_us(encoder: Encoder, delta: Event) -> float:
    readings = []
    for _ in range(ROUNDS):
        started_s = time.perf_counter()
        for _ in range(EVENTS_PER_ROUND):
            encoder.encode(delta)
        readings.append((time.perf_counter() - started_s) / EVENTS_PER_ROUND * 1e6)
    return statistics.median(readings)


def encoding_costs() -> dict[str, dict[str, float]]:
    """Microseconds for a delta, by dialect and part."""
    return {name: us_per_delta(dialect) for name, dialect in DIALECTS.items()}


def as_lines(costs: dict[str, dict[str, float]]) -> list[str]:
    return [
        f"encoding {name}: "
        + ", ".join(f"{us:.1f} µs for a delta of {part}" for part, us in parts.items())
        for name, parts in costs.items()
    ]


if __name__ == "__main__":
    print("\n".join(as_lines(encoding_costs())))
