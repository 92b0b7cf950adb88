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
SIZES = {"tiny-Q4_K_M.gguf": 4_000_000_000, "tiny-Q8_0.gguf": 8_000_000_000}
GGUF = {
    "org/tiny-gguf": (SIZES, "llama"),
    # The hub has read the mmproj file.
    "org/images-gguf": (SIZES | {"mmproj-F16.gguf": 1_000_000_000}, "clip"),
}
# Words that are never answered, refused each time, and answered with a page.
SILENCE, OVERLOAD, NO_HUB = "silence", "overload", "a-network-that-asks-for-a-log-in"


class HubServer(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Hub)
        self.is_closing = threading.Event()


class Hub(BaseHTTPRequestHandler):
    server: HubServer

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        words = parse_qs(url.query).get("search", [""])[0]
        if words == SILENCE:
            self.server.is_closing.wait()
            return
        match url.path.strip("/").split("/"):
            case _ if NO_HUB in self.path:
                self.send(200, b"<html>Log in to this network")
            case _ if words == OVERLOAD:
                self.send(503, {"error": "later"})
            case ["api", "models"]:
                names = [name for name in (*CONFIGS, "org/tiny-gguf") if words in name]
                found = {"downloads": 7, "likes": 3, "gated": False}
                self.send(200, [{"id": name} | found for name in names])
            case ["api", "models", _, _, "revision", revision] if revision != "main":
                self.send(404, {}, {"X-Error-Code": "RevisionNotFound"})
            case ["api", "models", org, name, *_]:
                self.repository(f"{org}/{name}")
            case ["org", "gated", "resolve", *_]:
                self.send(403, {}, {"X-Error-Code": "GatedRepo"})
            case [org, name, "resolve", _, file]:
                headers = {"ETag": f'"{name}/{file}"', "X-Repo-Commit": COMMIT}
                self.send(200, CONFIGS[f"{org}/{name}"][file], headers)

    do_HEAD = do_GET  # noqa: N815

    def repository(self, name: str) -> None:
        about: dict[str, Any] = {"gated": "auto" if name == "org/gated" else False}
        if name in CONFIGS:
            sizes = {file: len(json.dumps(content)) for file, content in CONFIGS[name].items()}
            sizes["model.safetensors"] = 2_000_000_000
        elif name in GGUF:
            sizes, architecture = GGUF[name]
            about["gguf"] = {"architecture": architecture}
        else:
            self.send(401, {}, {"X-Error-Code": "RepoNotFound"})
            return
        siblings = [{"rfilename": file, "size": size} for file, size in sizes.items()]
        self.send(200, {"id": name, "sha": COMMIT, "siblings": siblings} | about)

    def send(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
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
