"""An endpoint that answers by a script, without a socket, and reports its own timings, so that no
test depends on how fast this machine is; and the command on it. OpenAI's and Anthropic's API, and
the original neuron's paths."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.message import Message
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request

import pytest

from inference import proxies
from tests.metering.commands.command_output import output

PORT = 8080
URL = f"http://peer:{PORT}"
MODEL = "scripted"
PROMPT_TOKENS, COMPLETION_TOKENS = 100, 64
DECODE_TPS, PREFILL_TPS = 200.0, 5000.0
PIECES = ("The pier ", "is old.")


@dataclass
class Script:
    """What the next answers are like."""

    build: str = "b1"
    speed: float = 1.0
    """The speed its timings report, as a share of the ordinary."""
    reports_timing: bool = True
    status: int = 200
    locations: list[str] = field(default_factory=lambda: ["beast"])
    key: str = ""
    """What every request must have in its Authorization header; empty: none is asked for."""
    asked: list[tuple[str, Any]] = field(default_factory=list)
    """Paths and bodies of all POSTs."""
    wobble: int = 0

    def timing(self) -> dict[str, float]:
        """A little other each time, the same little in each run of a test."""
        self.wobble += 1
        noise = 1 + 0.01 * (self.wobble % 7 - 3) / 3
        return {
            "prefill_ms": PROMPT_TOKENS / (PREFILL_TPS * self.speed) * 1000 * noise,
            "decode_ms": COMPLETION_TOKENS / (DECODE_TPS * self.speed) * 1000 * noise,
            "prefill_tokens": PROMPT_TOKENS,
        }

    def open_url(self, request: Request, timeout: float) -> io.BytesIO:
        """In place of ``proxies.open_url``."""
        if not request.full_url.startswith(f"{URL}/"):
            raise ConnectionRefusedError("nobody listens")
        status, value = self._answered(request)
        if isinstance(value, Iterator):
            events = "".join(f"data: {json.dumps(event)}\n\n" for event in value)
            content = f"{events}: a comment\n\ndata: [DONE]\n\n"
        else:
            content = json.dumps(value)
        body = io.BytesIO(content.encode())
        if status >= 400:
            raise HTTPError(request.full_url, status, "", Message(), body)
        return body

    def _answered(self, request: Request) -> tuple[int, Any]:
        """The status, and JSON or the events of a stream."""
        path = request.full_url.removeprefix(URL)
        own_path = path.removeprefix("/api/neurons/beast")
        if self.key and request.get_header("Authorization") != f"Bearer {self.key}":
            return 401, {"error": {"message": "no such key"}}
        if request.data is None:
            found = self._answer(own_path)
            return (404, {"error": "nothing here"}) if found is None else (200, found)
        assert isinstance(request.data, bytes)
        self.asked.append((path, json.loads(request.data)))
        if self.status != 200:
            return self.status, {"error": {"message": "not today"}}
        is_timed = request.get_header("X-helexa-timing") == "true"
        answers = {
            "/v1/chat/completions": self._chunks(is_timed),
            "/v1/messages": self._events(),
            "/models/load": {"status": "done"},
            "/models/unload": {"status": "done"},
        }
        return 200, answers[own_path]

    def _answer(self, path: str) -> Any:
        cards = [{"index": index, "name": "a card"} for index in (0, 1)]
        busy = {"index": 1, "vram_used_mb": 5, "utilization_pct": 9, "temp_c": 50}
        return {
            "/version": {"git_sha": self.build, "package_version": "9.9"},
            "/discovery": {"hostname": "beast", "driver_version": "600.1", "devices": cards},
            "/models": [
                {"id": MODEL, "harness": "candle", "status": "loaded", "devices": [1]},
                {"id": "half", "harness": "candle", "status": "loading"},
            ],
            "/health": {
                "models": [{"id": MODEL, "in_flight": 0, "queue_depth": 0}],
                "devices": [{"index": 0, "vram_used_mb": 7, "temp_c": 70}, busy],
            },
            f"/models/{MODEL}/endpoint": {"url": f"http://localhost:{PORT}"},
            f"/v1/models/{MODEL}": {"id": MODEL, "locations": self.locations},
            "/v1/models": {
                "data": [
                    {"id": MODEL, "capabilities": ["chat", "tool_call"], "quant": "q4"},
                    {"id": "scripted-embedder", "capabilities": ["embeddings"]},
                    {"id": "cold", "loaded": False},
                ]
            },
        }.get(path)

    def _chunks(self, is_timed: bool) -> Iterator[Any]:
        yield {"choices": [{"delta": {"role": "assistant"}}]}
        for piece in PIECES:
            yield {"choices": [{"delta": {"content": piece}}]}
        usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": COMPLETION_TOKENS}
        usage |= {"prompt_tokens_details": {"cached_tokens": 4}}
        if is_timed and self.reports_timing:
            usage |= {"helexa_timing": self.timing()}
        yield {"choices": [], "usage": usage}

    def _events(self) -> Iterator[Any]:
        usage = {"input_tokens": 90, "cache_read_input_tokens": 10}
        yield {"type": "message_start", "message": {"usage": usage}}
        for piece in PIECES:
            yield {"type": "content_block_delta", "delta": {"type": "text_delta", "text": piece}}
        yield {"type": "message_delta", "usage": {"output_tokens": COMPLETION_TOKENS}}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    made = Script()
    monkeypatch.setattr(proxies, "open_url", made.open_url)
    return made


def bench(*words: str) -> str:
    """What ``manage.py bench`` prints."""
    return output("bench", *words)


def once(*words: str, name: str = "peer") -> str:
    return bench("once", "--endpoint", URL, "--name", name, "--pause", "0", *words)
