"""A hub on loopback that answers as Hugging Face does, for the requests that helexa makes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.inference.loading.fake_hub import FakeHub, Handler, serving

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


class Hub(Handler):
    def do_GET(self) -> None:  # noqa: N802
        url = urlsplit(self.path)
        words = parse_qs(url.query).get("search", [""])[0]
        if words == SILENCE:
            self.server.is_closing.wait()
            return
        match url.path.strip("/").split("/"):
            case _ if NO_HUB in self.path:
                self._send(200, b"<html>Log in to this network", {})
            case _ if words == OVERLOAD:
                self.send_json(503, {"error": "later"})
            case ["api", "models"]:
                names = [name for name in (*CONFIGS, "org/tiny-gguf") if words in name]
                found = {"downloads": 7, "likes": 3, "gated": False}
                self.send_json(200, [{"id": name} | found for name in names])
            case ["api", "models", _, _, "revision", revision] if revision != "main":
                self.send_json(404, {}, "RevisionNotFound")
            case ["api", "models", org, name, *_]:
                self.repository(f"{org}/{name}")
            case ["org", "gated", "resolve", *_]:
                self.send_json(403, {}, "GatedRepo")
            case [org, name, "resolve", _, file]:
                body = json.dumps(CONFIGS[f"{org}/{name}"][file]).encode()
                self._send(200, body, {"ETag": f'"{name}/{file}"'})

    def repository(self, name: str) -> None:
        about: dict[str, Any] = {"gated": "auto" if name == "org/gated" else False}
        if name in CONFIGS:
            sizes = {file: len(json.dumps(content)) for file, content in CONFIGS[name].items()}
            sizes["model.safetensors"] = 2_000_000_000
        elif name in GGUF:
            sizes, architecture = GGUF[name]
            about["gguf"] = {"architecture": architecture}
        else:
            self.send_json(401, {}, "RepoNotFound")
            return
        siblings = [{"rfilename": file, "size": size} for file, size in sizes.items()]
        self.send_json(200, {"id": name, "sha": COMMIT, "siblings": siblings} | about)

    def send_json(self, status: int, content: Any, code: str = "") -> None:
        self._send(status, json.dumps(content).encode(), {"X-Error-Code": code} if code else {})


@contextmanager
def running_hub() -> Iterator[str]:
    """Its address, for HF_ENDPOINT."""
    server = FakeHub({}, commit=COMMIT)
    server.RequestHandlerClass = Hub
    with serving(server):
        yield server.url


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its address, which HF_ENDPOINT names."""
    with running_hub() as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        yield url
