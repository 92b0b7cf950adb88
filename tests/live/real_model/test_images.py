"""Images through a running server and a real, tiny Gemma 3: each dialect's body becomes the prompt
that transformers' processor would make of it, and the answer is transformers'."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedModel
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

from tests.inference.image_files import data_uri, png
from tests.inference.models.vision import tiny_gemma3
from tests.live.catalogue import create_model
from tests.live.conftest import with_caches
from tests.live.scripted.model import CORPUS
from tests.live.serving import WAIT_TIMEOUT_S, Serve

NUM_OUTPUTS = 6
SPECIAL = (
    *("<bos>", "<start_of_turn>", "<end_of_turn>"),
    *("<start_of_image>", "<image_soft_token>", "<end_of_image>"),
)
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}<start_of_image>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
"""A template that writes turns and images as Gemma 3's own does."""
IMAGES = png(40, 9), png(7, 30)
WHOLE = "\n\n<start_of_image>{}<end_of_image>\n\n".format(
    "<image_soft_token>" * tiny_gemma3.NUM_TOKENS
)


def make_tokenizer(special: tuple[str, ...] = SPECIAL) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["\n\n\n The capital of France is Paris.", *CORPUS], trainer)
    return tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> tokenizers.Tokenizer:
    return make_tokenizer()


@pytest.fixture(scope="module")
def reference(tokenizer: tokenizers.Tokenizer) -> PreTrainedModel:
    ids = [tokenizer.token_to_id(token) for token in SPECIAL]
    return tiny_gemma3.gemma3_of(tokenizer.get_vocab_size(), ids[4], ids[3], ids[5])


@pytest.fixture(scope="module")
def served(
    reference: PreTrainedModel,
    tokenizer: tokenizers.Tokenizer,
    tmp_path_factory: pytest.TempPathFactory,
    model_cache_dir: Path,
    native_cache_dir: Path,
) -> Iterator[Serve]:
    folder = tmp_path_factory.mktemp("gemma3")
    reference.save_pretrained(folder)
    tiny_gemma3.GEMMA3.save_processor(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<bos>", "eos_token": "<end_of_turn>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    data_dir = with_caches(tmp_path_factory.mktemp("live"), model_cache_dir, native_cache_dir)
    serve = Serve(data_dir, "--no-model")
    try:
        serve.wait_ready()
        create_model(
            serve,
            name="seeing",
            source=f"path:{folder}",
            dtype="float32",
            kv_dtype="fp32",
            kv_memory_bytes=64 * 2**20,
        )
        yield serve
    finally:
        serve.end()


def openai_body() -> dict[str, Any]:
    urls = [{"type": "image_url", "image_url": {"url": data_uri(one)}} for one in IMAGES]
    return {
        "max_tokens": NUM_OUTPUTS,
        "temperature": 0,
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "The"},
                    urls[0],
                    {"type": "text", "text": "Paris"},
                    urls[1],
                ],
            }
        ],
    }


def anthropic_body() -> dict[str, Any]:
    sources = [
        {"type": "base64", "media_type": "image/png", "data": base64.b64encode(one).decode()}
        for one in IMAGES
    ]
    first, second = ({"type": "image", "source": source} for source in sources)
    words = [{"type": "text", "text": text} for text in ("The", "Paris")]
    content = [words[0], first, words[1], second]
    messages = [{"role": "user", "content": content}]
    return {"max_tokens": NUM_OUTPUTS, "temperature": 0, "messages": messages}


def ollama_body() -> dict[str, Any]:
    """Its images stand in front of a turn's text."""
    images = [base64.b64encode(one).decode() for one in IMAGES]
    return {
        "stream": False,
        "options": {"num_predict": NUM_OUTPUTS, "temperature": 0},
        "messages": [{"role": "user", "content": "The", "images": images}],
    }


READ_TOKENS = "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"
DIALECTS = {
    "openai": (
        "/v1/chat/completions",
        openai_body,
        f"The{WHOLE}Paris{WHOLE}",
        lambda answer: answer["choices"][0]["message"]["content"],
        lambda answer: answer["usage"]["prompt_tokens"],
    ),
    "anthropic": (
        "/v1/messages",
        anthropic_body,
        f"The{WHOLE}Paris{WHOLE}",
        lambda answer: "".join(part["text"] for part in answer["content"]),
        lambda answer: sum(answer["usage"][key] for key in READ_TOKENS),
    ),
    "ollama": (
        "/api/chat",
        ollama_body,
        f"{WHOLE}{WHOLE}The",
        lambda answer: answer["message"]["content"],
        lambda answer: answer["prompt_eval_count"],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("dialect", DIALECTS)
def test_images_of_each_dialect(
    served: Serve, reference: PreTrainedModel, tokenizer: tokenizers.Tokenizer, dialect: str
) -> None:
    path, body, turn, text_of, num_tokens_of = DIALECTS[dialect]
    prompt = f"<bos><start_of_turn>user\n{turn}<end_of_turn>\n<start_of_turn>model\n"
    token_ids = tokenizer.encode(prompt, add_special_tokens=False).ids
    wanted = tiny_gemma3.GEMMA3.greedy_of(reference, token_ids, pixels(), NUM_OUTPUTS)
    given = {"model": "seeing"} | body()
    response = httpx.post(f"{served.url}{path}", json=given, timeout=WAIT_TIMEOUT_S)
    assert response.status_code == 200, f"{response.text}\n{served.describe()}"
    answer = response.json()
    assert num_tokens_of(answer) == len(token_ids)
    assert text_of(answer) == tokenizer.decode(wanted)


def pixels() -> list[torch.Tensor]:
    """The patches of both images, as transformers' own processor makes them."""
    pillow = pytest.importorskip("PIL.Image")
    opened = [pillow.open(io.BytesIO(one)).convert("RGB") for one in IMAGES]
    processor = Gemma3ImageProcessorPil(**tiny_gemma3.PROCESSOR)
    return list(processor(images=opened, return_tensors="pt")["pixel_values"])
