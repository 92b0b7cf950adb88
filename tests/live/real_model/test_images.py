"""Images through a running server and a real, tiny Gemma 3: a chat becomes the prompt that
transformers' processor would make of it, and the answer is transformers'. Other towers are in
``tests/inference/models/vision``, other dialects in ``tests/inference/wire``."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedModel
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

from tests.inference.image_files import data_uri, png
from tests.inference.models.vision import tiny_gemma3
from tests.live.catalogue import create_model
from tests.live.conftest import with_caches
from tests.live.scripted.model import CORPUS
from tests.live.serving import Serve

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
