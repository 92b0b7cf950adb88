"""A real model with adapters, as clients and operators meet them: through the whole of serve."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch

from tests.inference.adapter_files import write_adapter
from tests.live.catalogue import create_model
from tests.live.conftest import with_caches
from tests.live.serving import QUESTION, Serve, wait_until

NUM_LAYERS, HIDDEN, INNER, KV = 30, 576, 1536, 192
SHAPES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.v_proj": (KV, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}
"""The shapes of SmolLM2 135M's projections."""


@pytest.fixture
def serve(tmp_path: Path, model_cache_dir: Path, native_cache_dir: Path) -> Iterator[Serve]:
    with Serve(
        with_caches(tmp_path / "var", model_cache_dir, native_cache_dir), "--no-model"
    ) as serve:
        yield serve


def write(directory: Path, seed: int) -> str:
    base = {
        f"model.layers.{layer}.{name}.weight": torch.zeros(shape)
        for layer in range(NUM_LAYERS)
        for name, shape in SHAPES.items()
    }
    targets = ("q_proj", "v_proj", "down_proj")
    write_adapter(directory, base, seed=seed, rank=16, alpha=32, size=0.1, targets=targets)
    return f"path:{directory}"


@pytest.mark.slow
def test_adapters_of_a_real_model(serve: Serve, default_gguf: Path, tmp_path: Path) -> None:
    create_model(serve, name="base", source=f"path:{default_gguf}", kv_memory_bytes=400_000_000)
    for seed, name in enumerate(("first", "second", "broken")):
        create_model(serve, name=name, source=write(tmp_path / name, seed), base="base")
    config = tmp_path / "broken" / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"use_dora": True}))

    def answer(name: str) -> str:
        # A random adapter's text has no end of its own.
        return serve.answer(model=name, max_tokens=12)

    first = answer("base:first")
    answers = {name: answer(name) for name in ("base", "first", "second")}
    assert "Paris" in answers["base"]
    assert answers["first"] == first
    assert len(set(answers.values())) == 3, answers

    refused = httpx.post(
        f"{serve.url}/v1/chat/completions",
        json={"model": "broken", "messages": [{"role": "user", "content": QUESTION}]},
        timeout=60,
    )
    assert refused.status_code >= 400
    assert "DoRA" in refused.json()["error"]["message"]
    listed = {m["id"]: m for m in httpx.get(f"{serve.url}/v1/models", timeout=60).json()["data"]}
    assert [listed[name].get("parent") for name in ("base", "first")] == [None, "base"]
    base = wait_until(lambda: serve.replica("base"), "the base is reported")
    assert base is not None and base["status"] == "ready"
    assert serve.replica("first") is None
