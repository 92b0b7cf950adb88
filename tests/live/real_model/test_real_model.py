"""Answers of real models that ``test_one_serve`` does not ask for: continued over a socket, asked
from a shell, with adapters, and with images, whose prompt and answer are transformers'. Each field
is tried in ``tests/strangers/fields``, other towers in ``tests/inference/models/vision``."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedModel
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

from tests.inference.adapter_files import write_adapter
from tests.inference.image_files import data_uri, png
from tests.inference.models.vision import tiny_gemma3
from tests.live.conftest import with_caches
from tests.live.scripted.model import CORPUS
from tests.live.serving import (
    MODEL,
    QUESTION,
    REPOSITORY_DIR,
    WAIT_TIMEOUT_S,
    Serve,
    chat_body,
    create_model,
    serve_environment,
    wait_until,
)


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


def test_the_curl_line_and_the_chat_command_of_a_newcomer_work(helexa: Serve) -> None:
    """The line that serve prints for pasting; and a question through a pipe without URL or key."""
    body = json.loads(helexa.wait_printed(r" curl .*-d '(.*)'")[1])
    response = httpx.post(f"{helexa.url}/v1/chat/completions", json=body, timeout=WAIT_TIMEOUT_S)
    assert "Paris" in response.text
    assert body == chat_body()
    environment = serve_environment() | {"HELEXA_DATA_DIR": str(helexa.data_dir)}
    environment.pop("HELEXA_URL", None)
    done = subprocess.run(
        [sys.executable, str(REPOSITORY_DIR / "manage.py"), "chat", MODEL, "--max-tokens", "8"],
        input=QUESTION,
        env=environment,
        capture_output=True,
        text=True,
        timeout=WAIT_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0 and done.stdout.strip(), done.stderr
    assert re.search(r"\[\d tokens, [\d.]+ tok/s\]", done.stderr), done.stderr


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


NUM_OUTPUTS = 6
IMAGES = png(40, 9), png(7, 30)
SPECIAL = (
    *("<bos>", "<start_of_turn>", "<end_of_turn>"),
    *("<start_of_image>", "<image_soft_token>", "<end_of_image>"),
)
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}<start_of_image>{% else %}{{ part.text }}{% endif %}{% endfor %}"
    "{% endif %}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
"""A template that writes turns and images as Gemma 3's own does."""
IMAGE = "\n\n<start_of_image>{}<end_of_image>\n\n".format(
    "<image_soft_token>" * tiny_gemma3.NUM_TOKENS
)
PROMPT = f"<bos><start_of_turn>user\nThe{IMAGE}Paris{IMAGE}<end_of_turn>\n<start_of_turn>model\n"


def make_tokenizer() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["\n\n\n The capital of France is Paris.", *CORPUS], trainer)
    return tokenizer


def save(folder: Path, tokenizer: tokenizers.Tokenizer, model: PreTrainedModel) -> None:
    model.save_pretrained(folder)
    tiny_gemma3.GEMMA3.save_processor(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<end_of_turn>", "bos_token": "<bos>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def test_images_of_a_chat(tmp_path: Path, model_cache_dir: Path, native_cache_dir: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    tokenizer, folder = make_tokenizer(), tmp_path / "gemma3"
    start, pad, end = (tokenizer.token_to_id(token) for token in SPECIAL[3:])
    model = tiny_gemma3.gemma3_of(tokenizer.get_vocab_size(), pad, start, end)
    save(folder, tokenizer, model)

    opened = [pillow.open(io.BytesIO(one)).convert("RGB") for one in IMAGES]
    processor = Gemma3ImageProcessorPil(**tiny_gemma3.PROCESSOR)
    pixels = list(processor(images=opened, return_tensors="pt")["pixel_values"])
    token_ids = tokenizer.encode(PROMPT, add_special_tokens=False).ids
    wanted = tiny_gemma3.GEMMA3.greedy_of(model, token_ids, pixels, NUM_OUTPUTS)

    texts = [{"type": "text", "text": text} for text in ("The", "Paris")]
    images = [{"type": "image_url", "image_url": {"url": data_uri(one)}} for one in IMAGES]
    content = [texts[0], images[0], texts[1], images[1]]
    fields = {"dtype": "float32", "kv_dtype": "fp32", "kv_memory_bytes": 64 * 2**20}
    data_dir = with_caches(tmp_path / "var", model_cache_dir, native_cache_dir)
    with Serve(data_dir, "--no-model") as serve:
        create_model(serve, name="gemma3", source=f"path:{folder}", **fields)
        messages = [{"role": "user", "content": content}]
        response = serve.chat(model="gemma3", messages=messages, max_tokens=NUM_OUTPUTS)
        assert response.status_code == 200, f"{response.text}\n{serve.describe()}"
    answer = response.json()
    assert answer["choices"][0]["message"]["content"] == tokenizer.decode(wanted)
    assert answer["usage"]["prompt_tokens"] == len(token_ids)
