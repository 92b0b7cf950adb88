"""How long an editor waits for helexa-acp: from its start to what can be done with it.

``python -m benchmarks.editor_bridge [--rounds N]`` prints medians, in seconds since the process was
started, with each wire API. The endpoint is a canned one on loopback.

    initialized     the answer to ``initialize``
    ready           the answer to ``session/new``: the first prompt can be sent
    asked           the endpoint has the first prompt's request
    answered        the editor has the answer's first piece
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PACKAGE_DIR = Path(__file__).resolve().parent.parent / "acp"
MOMENTS = ("initialized", "ready", "asked", "answered")
USAGE = {"input_tokens": 1, "output_tokens": 1}
RESPONSE = {"id": "r", "object": "response", "output": [], "usage": USAGE | {"total_tokens": 2}}
FRAMES: dict[str, list[dict[str, Any]]] = {
    "openai-chat": [
        {"id": "c", "choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": None}]},
        {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ],
    "openai-responses": [
        {"type": "response.output_text.delta", "delta": "Hi", "item_id": "i", "output_index": 0},
        {"type": "response.completed", "response": RESPONSE},
    ],
    "anthropic-messages": [
        {"type": "message_start", "message": {"id": "m", "content": [], "usage": USAGE}},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": "Hi"},
        },
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": USAGE},
        {"type": "message_stop"},
    ],
}


class Endpoint(BaseHTTPRequestHandler):
    wire_api = "openai-chat"
    asked_s = 0.0

    def do_GET(self) -> None:
        self._answer("application/json", b'{"data": [{"id": "m", "limit": {"context": 8192}}]}')

    def do_POST(self) -> None:
        Endpoint.asked_s = time.perf_counter()
        self.rfile.read(int(self.headers["Content-Length"]))
        frames = FRAMES[self.wire_api]
        lines = [f"event: {one.get('type', '')}\ndata: {json.dumps(one)}\n\n" for one in frames]
        self._answer("text/event-stream", "".join(lines).encode())

    def _answer(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None: ...


@contextmanager
def endpoint() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


class Agent:
    """A process, and when it was started."""

    def __init__(self, folder: Path, config_path: Path) -> None:
        environment = os.environ | {
            "PYTHONPATH": str(PACKAGE_DIR),
            "HELEXA_ACP_CONFIG_PATH": str(config_path),
            "XDG_DATA_HOME": str(folder),
            "HELEXA_ACP_LOG_FILE": os.devnull,
        }
        self.started_s = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "helexa_acp"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def ask(self, request_id: int, method: str, **params: Any) -> None:
        assert self._process.stdin is not None
        message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def wait_for(self, request_id: int | None) -> dict[str, Any]:
        """The answer to it; ``None``: the first piece of the model's text."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message: dict[str, Any] = json.loads(line)
            kind = message.get("params", {}).get("update", {}).get("sessionUpdate")
            if request_id is None and kind == "agent_message_chunk":
                return message
            if request_id is not None and message.get("id") == request_id:
                return message
        raise RuntimeError("the agent ended")

    def end(self) -> None:
        self._process.communicate()


def measure(folder: Path, wire_api: str, url: str) -> list[float]:
    """Seconds from the start to each of ``MOMENTS``."""
    Endpoint.wire_api = wire_api
    config_path = folder / "config.toml"
    config_path.write_text(
        f'[[endpoints]]\nname = "here"\nbase_url = "{url}"\nwire_api = "{wire_api}"\n'
        'default_model = "m"\n'
    )
    agent = Agent(folder, config_path)
    agent.ask(1, "initialize", protocolVersion=1)
    agent.wait_for(1)
    moments_s = [time.perf_counter()]
    agent.ask(2, "session/new", cwd=str(folder), mcpServers=[])
    session_id = agent.wait_for(2)["result"]["sessionId"]
    moments_s.append(time.perf_counter())
    hello = [{"type": "text", "text": "Hello!"}]
    agent.ask(3, "session/prompt", sessionId=session_id, prompt=hello)
    agent.wait_for(None)
    answered_s = time.perf_counter()
    agent.wait_for(3)
    agent.end()
    return [at_s - agent.started_s for at_s in (*moments_s, Endpoint.asked_s, answered_s)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder, endpoint() as url:
        for wire_api in FRAMES:
            runs = [measure(Path(folder), wire_api, url) for _ in range(rounds + 1)][1:]
            medians = [round(statistics.median(column), 3) for column in zip(*runs, strict=True)]
            results[wire_api] = dict(zip(MOMENTS, medians, strict=True))
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
