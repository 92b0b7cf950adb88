"""Answers of real models that ``test_one_serve`` does not ask for: continued over a socket, with
adapters. Each field is tried in ``tests/strangers/fields``, the commands of the documentation in
``tests/strangers/docs``, images in ``tests/inference/models/vision``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import openai
import torch

from tests.inference.adapter_files import write_adapter
from tests.live.conftest import with_caches
from tests.live.serving import MODEL, QUESTION, Serve, create_model, wait_until


def test_what_was_prepared_over_a_socket_is_not_computed_again(helexa: Serve) -> None:
    instructions = "You answer questions about the capitals of countries, in one short sentence. "
    client = openai.OpenAI(base_url=f"{helexa.url}/v1", api_key="x")
    with client.responses.connect() as connection:

        def turn(**fields: Any) -> Any:
            sent = {"type": "response.create", "model": MODEL, "temperature": 0, "store": False}
            connection.send(sent | fields)  # type: ignore[arg-type]
            for event in connection:
                assert event.type not in ("error", "response.failed"), event
                if event.type == "response.completed":
                    return event.response
            raise AssertionError("the socket was closed")

        developer = {"role": "developer", "content": instructions * 8}
        prepared = turn(input=[developer], generate=False)
        assert (prepared.output, prepared.usage.output_tokens) == ([], 0)
        answer = turn(input=QUESTION, previous_response_id=prepared.id)
        assert "Paris" in answer.output_text
        assert answer.usage.input_tokens_details.cached_tokens >= 96


KV, HIDDEN, INNER = 192, 576, 1536
SHAPES = {"self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.v_proj": (KV, HIDDEN)}
SHAPES["mlp.down_proj"] = (HIDDEN, INNER)
"""The shapes of the projections in each of SmolLM2 135M's 30 layers."""


def test_adapters_of_a_real_model(
    default_gguf: Path, tmp_path: Path, model_cache_dir: Path, native_cache_dir: Path
) -> None:
    base = {
        f"model.layers.{layer}.{name}.weight": torch.zeros(shape)
        for layer in range(30)
        for name, shape in SHAPES.items()
    }
    data_dir = with_caches(tmp_path / "var", model_cache_dir, native_cache_dir)
    with Serve(data_dir, "--no-model") as serve:
        create_model(serve, name="base", source=f"path:{default_gguf}", kv_memory_bytes=400_000_000)
        for seed, name in enumerate(("first", "second")):
            folder = tmp_path / name
            targets = ("q_proj", "v_proj", "down_proj")
            write_adapter(folder, base, seed=seed, rank=16, alpha=32, size=0.1, targets=targets)
            create_model(serve, name=name, source=f"path:{folder}", base="base")
        # A random adapter's text has no end of its own.
        names = ("base:first", "base", "first", "second")
        again, *answers = (serve.answer(model=name, max_tokens=12) for name in names)
        assert "Paris" in answers[0]
        assert again == answers[1]
        assert len(set(answers)) == 3, answers
        listed = httpx.get(f"{serve.url}/v1/models", timeout=60).json()["data"]
        parents = {one["id"]: one.get("parent") for one in listed}
        assert (parents["base"], parents["first"]) == (None, "base")
        replica = wait_until(lambda: serve.replica("base"), "the base is reported")
        assert replica is not None and replica["status"] == "ready"
        assert serve.replica("first") is None
