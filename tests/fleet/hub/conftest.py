"""A hub on loopback that answers as Hugging Face does, for the requests that helexa makes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "org/dense": {"config.json": LLAMA},
    "org/quantised": {"config.json": LLAMA | {"quantization_config": {"quant_method": "awq"}}},
    "org/strange": {"config.json": {"model_type": "reformer"}},
    "org/gated": {"config.json": LLAMA},
}
"""The JSON files of each repository."""

FILES = {"model.safetensors": 2_000_000_000}
GGUF_FILES = {"tiny-Q4_K_M.gguf": 4_000_000_000, "tiny-Q8_0.gguf": 8_000_000_000}

SILENCE = "silence"
"""Words that are never answered."""
OVERLOAD = "overload"
"""Words that are refused each time."""
NO_HUB = "a-network-that-asks-for-a-log-in"
"""A search that is answered with a page."""


class HubServer(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Hub)
        self.is_closing = threading.Event()


class Hub(BaseHTTPRequestHandler):
    server: HubServer

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if NO_HUB in self.path:
            self._send(200, b"<html>Log in to this network</html>")
            return
        parts = url.path.strip("/").split("/")
        if url.path == "/api/models":
            self._search(parse_qs(url.query).get("search", [""])[0])
        elif parts[:2] == ["api", "models"]:
            self._model("/".join(parts[2:4]), parts[4:])
        elif parts[2:3] == ["resolve"]:
            self._file("/".join(parts[:2]), "/".join(parts[4:]))
        else:
            self._send_json(404, {"error": "what?"})

    def do_HEAD(self) -> None:
        self.do_GET()

    def _search(self, words: str) -> None:
        if words == SILENCE:
            self.server.is_closing.wait()
        if words == OVERLOAD:
            self._send_json(503, {"error": "later"})
            return
        names = [name for name in (*CONFIGS, "org/tiny-gguf") if words in name]
        found = [{"id": name, "downloads": 7, "likes": 3, "gated": False} for name in names]
        self._send_json(200, found)

    def _model(self, name: str, rest: list[str]) -> None:
        if rest[:1] == ["revision"] and rest[1:] != ["main"]:
            self._send_json(404, {"error": "no"}, {"X-Error-Code": "RevisionNotFound"})
        elif name == "org/tiny-gguf":
            self._send_json(200, self._info(name, GGUF_FILES) | {"gguf": {"architecture": "llama"}})
        elif name == "org/images-gguf":  # the hub has read the mmproj file
            files = GGUF_FILES | {"mmproj-F16.gguf": 1_000_000_000}
            self._send_json(200, self._info(name, files) | {"gguf": {"architecture": "clip"}})
        elif name in CONFIGS:
            sizes = {file: len(json.dumps(content)) for file, content in CONFIGS[name].items()}
            self._send_json(200, self._info(name, FILES | sizes))
        else:
            self._send_json(401, {"error": "no"}, {"X-Error-Code": "RepoNotFound"})

    @staticmethod
    def _info(name: str, sizes: dict[str, int]) -> dict[str, Any]:
        siblings = [{"rfilename": file, "size": size} for file, size in sizes.items()]
        return {
            "id": name,
            "sha": COMMIT,
            "siblings": siblings,
            "gated": "auto" if name == "org/gated" else False,
        }

    def _file(self, name: str, file: str) -> None:
        if name == "org/gated":
            self._send_json(403, {"error": "no"}, {"X-Error-Code": "GatedRepo"})
            return
        headers = {"ETag": f'"{name}/{file}"', "X-Repo-Commit": COMMIT}
        self._send_json(200, CONFIGS[name][file], headers)

    def _send_json(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        self._send(status, json.dumps(content).encode(), headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Logs nothing."""


@contextmanager
def running_hub() -> Iterator[str]:
    """Its address, for HF_ENDPOINT."""
    server = HubServer()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.is_closing.set()
        server.shutdown()
        server.server_close()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its address, which HF_ENDPOINT names."""
    with running_hub() as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        yield url
