"""An endpoint that answers by a script and reports its own timings, so that no test depends on how
fast this machine is. OpenAI's and Anthropic's API, and the original neuron's paths."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

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
    in_flight: int = 0
    """Other clients' requests, as the neuron's health reports them."""
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


@contextmanager
def running_endpoint(script: Script) -> Iterator[str]:
    """Its URL."""

    handler = type("Handler", (_Handler,), {"script": script})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    script: Script

    def log_message(self, *_args: Any) -> None:
        pass

    def do_GET(self) -> None:
        found = self._answer(self.path.removeprefix("/api/neurons/beast"))
        self._reply(404 if found is None else 200, found or {"error": "nothing here"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.script.asked.append((self.path, body))
        path = self.path.removeprefix("/api/neurons/beast")
        if self.script.status != 200:
            self._reply(self.script.status, {"error": {"message": "not today"}})
        elif path == "/v1/chat/completions":
            self._reply(200, self._chunks())
        elif path == "/v1/messages":
            self._reply(200, self._events())
        elif path in ("/models/load", "/models/unload"):
            self._reply(200, {"status": "done"})
        else:
            self._reply(404, {"error": "nothing here"})

    def _answer(self, path: str) -> Any:
        url = f"http://localhost:{self.server.server_address[1]}"  # type: ignore[attr-defined]
        return {
            "/version": {"git_sha": self.script.build, "package_version": "9.9"},
            "/discovery": {
                "hostname": "beast",
                "driver_version": "600.1",
                "devices": [{"index": 0, "name": "a card"}, {"index": 1, "name": "a card"}],
            },
            "/models": [
                {"id": MODEL, "harness": "candle", "status": "loaded", "devices": [1]},
                {"id": "half", "harness": "candle", "status": "loading"},
            ],
            "/health": {
                "models": [{"id": MODEL, "in_flight": self.script.in_flight, "queue_depth": 0}],
                "devices": [
                    {"index": 0, "vram_used_mb": 7, "temp_c": 70},
                    {"index": 1, "vram_used_mb": 5, "utilization_pct": 9, "temp_c": 50},
                ],
            },
            f"/models/{MODEL}/endpoint": {"url": url},
            f"/v1/models/{MODEL}": {"id": MODEL, "locations": self.script.locations},
            "/v1/models": {
                "data": [
                    {"id": MODEL, "capabilities": ["chat", "tool_call"], "quant": "q4"},
                    {"id": "scripted-embedder", "capabilities": ["embeddings"]},
                    {"id": "cold", "loaded": False},
                ]
            },
        }.get(path)

    def _chunks(self) -> Iterator[Any]:
        yield {"choices": [{"delta": {"role": "assistant"}}]}
        for piece in PIECES:
            yield {"choices": [{"delta": {"content": piece}}]}
        last: dict[str, Any] = {
            "choices": [],
            "usage": {
                "prompt_tokens": PROMPT_TOKENS,
                "completion_tokens": COMPLETION_TOKENS,
                "prompt_tokens_details": {"cached_tokens": 4},
            },
        }
        if self.script.reports_timing and self.headers["x-helexa-timing"] == "true":
            last["usage"]["helexa_timing"] = self.script.timing()
        yield last

    def _events(self) -> Iterator[Any]:
        yield {
            "type": "message_start",
            "message": {"usage": {"input_tokens": 90, "cache_read_input_tokens": 10}},
        }
        for piece in PIECES:
            yield {"type": "content_block_delta", "delta": {"type": "text_delta", "text": piece}}
        yield {"type": "message_delta", "usage": {"output_tokens": COMPLETION_TOKENS}}

    def _reply(self, status: int, value: Any) -> None:
        """An iterator is streamed."""
        key = self.script.key
        if key and self.headers["authorization"] != f"Bearer {key}":
            status, value = 401, {"error": {"message": "no such key"}}
        if not isinstance(value, Iterator):
            kind, content = "application/json", json.dumps(value)
        else:
            kind = "text/event-stream"
            events = "".join(f"data: {json.dumps(event)}\n\n" for event in value)
            content = f"{events}: a comment\n\ndata: [DONE]\n\n"
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content.encode())
