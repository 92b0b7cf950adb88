"""Images through a running server and real, tiny models: each dialect's body becomes the prompt
that transformers' processor would make of it, and the answer is transformers'. Gemma 3 reads an
image whole; SmolVLM in tiles, unless it is asked for low detail."""

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
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from tests.inference.image_files import data_uri, png
from tests.inference.models.vision import tiny_gemma3, tiny_idefics3
from tests.live.catalogue import create_model
from tests.live.conftest import with_caches
from tests.live.scripted.model import CORPUS
from tests.live.serving import WAIT_TIMEOUT_S, Serve

NUM_OUTPUTS = 6
IMAGES = png(40, 9), png(7, 30)
PARTS = (
    "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}IMAGE{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}"
)

GEMMA = (
    *("<bos>", "<start_of_turn>", "<end_of_turn>"),
    *("<start_of_image>", "<image_soft_token>", "<end_of_image>"),
)
GEMMA_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n"
    f"{PARTS.replace('IMAGE', '<start_of_image>')}<end_of_turn>\n{{% endfor %}}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
"""A template that writes turns and images as Gemma 3's own does."""
WHOLE = "\n\n<start_of_image>{}<end_of_image>\n\n".format(
    "<image_soft_token>" * tiny_gemma3.NUM_TOKENS
)

AROUND, GLOBAL, PAD = "<fake_token_around_image>", "<global-img>", "<image>"
SMOLVLM = (
    *("<|im_start|>", "<end_of_utterance>", AROUND, GLOBAL, PAD),
    *("<row_1_col_1>", "<row_2_col_1>"),
)
SMOLVLM_TEMPLATE = (
    "<|im_start|>{% for m in messages %}{{ m.role | capitalize }}: "
    f"{PARTS.replace('IMAGE', PAD)}<end_of_utterance>\n{{% endfor %}}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""The same as SmolVLM's own does."""
PADS = PAD * tiny_idefics3.TILE_TOKENS
SMALL = f"{AROUND}{GLOBAL}{PADS}{AROUND}"


def tile(row: int, column: int) -> str:
    return f"{AROUND}<row_{row}_col_{column}>{PADS}"


WIDE = f"{tile(1, 1)}{tile(1, 2)}{tile(1, 3)}\n\n{SMALL}"
TALL = f"{tile(1, 1)}\n{tile(2, 1)}\n{tile(3, 1)}\n\n{SMALL}"


def make_tokenizer(special: tuple[str, ...]) -> tokenizers.Tokenizer:
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


def gemma3(tokenizer: tokenizers.Tokenizer) -> PreTrainedModel:
    start, pad, end = (tokenizer.token_to_id(token) for token in GEMMA[3:])
    return tiny_gemma3.gemma3_of(tokenizer.get_vocab_size(), pad, start, end)


def smolvlm(tokenizer: tokenizers.Tokenizer) -> PreTrainedModel:
    return tiny_idefics3.smolvlm_of(tokenizer.get_vocab_size(), tokenizer.token_to_id(PAD))


def save(folder: Path, tokenizer: tokenizers.Tokenizer, eos: str, template: str) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": eos, "chat_template": template}
    bos = {"bos_token": "<bos>"} if "bos_token" in template else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | bos))
    return folder


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, model_cache_dir: Path, native_cache_dir: Path
) -> Iterator[Serve]:
    """A server with both models."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("gemma3", "smolvlm")}
    gemma_tokenizer, smolvlm_tokenizer = make_tokenizer(GEMMA), make_tokenizer(SMOLVLM)
    gemma3(gemma_tokenizer).save_pretrained(folders["gemma3"])
    tiny_gemma3.GEMMA3.save_processor(folders["gemma3"])
    save(folders["gemma3"], gemma_tokenizer, "<end_of_turn>", GEMMA_TEMPLATE)
    smolvlm(smolvlm_tokenizer).save_pretrained(folders["smolvlm"])
    tiny_idefics3.SMOLVLM.save_processor(folders["smolvlm"])
    save(folders["smolvlm"], smolvlm_tokenizer, "<end_of_utterance>", SMOLVLM_TEMPLATE)
    data_dir = with_caches(tmp_path_factory.mktemp("live"), model_cache_dir, native_cache_dir)
    fields = {"dtype": "float32", "kv_dtype": "fp32", "kv_memory_bytes": 64 * 2**20}
    with Serve(data_dir, "--no-model") as serve:
        for name, folder in folders.items():
            create_model(serve, name=name, source=f"path:{folder}", **fields)
        yield serve


def ask(serve: Serve, path: str, **body: Any) -> dict[str, Any]:
    response = httpx.post(f"{serve.url}{path}", json=body, timeout=WAIT_TIMEOUT_S)
    assert response.status_code == 200, f"{response.text}\n{serve.describe()}"
    answer: dict[str, Any] = response.json()
    return answer


def between_words(images: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A user's turn: a word before each of two images."""
    words = [{"type": "text", "text": text} for text in ("The", "Paris")]
    content = [words[0], images[0], words[1], images[1]]
    return [{"role": "user", "content": content}]


def in_openais_words(**fields: str) -> list[dict[str, Any]]:
    return between_words(
        [{"type": "image_url", "image_url": {"url": data_uri(one)} | fields} for one in IMAGES]
    )


ENCODED = [base64.b64encode(one).decode() for one in IMAGES]
READ_TOKENS = "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"
GREEDY: dict[str, Any] = {"max_tokens": NUM_OUTPUTS, "temperature": 0}


def by_chat(serve: Serve) -> tuple[str, int]:
    answer = ask(
        serve, "/v1/chat/completions", model="gemma3", messages=in_openais_words(), **GREEDY
    )
    return answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens"]


def by_messages(serve: Serve) -> tuple[str, int]:
    sources = [{"type": "base64", "media_type": "image/png", "data": one} for one in ENCODED]
    images = [{"type": "image", "source": source} for source in sources]
    answer = ask(serve, "/v1/messages", model="gemma3", messages=between_words(images), **GREEDY)
    text = "".join(part["text"] for part in answer["content"])
    return text, sum(answer["usage"][key] for key in READ_TOKENS)


def by_ollama(serve: Serve) -> tuple[str, int]:
    """Its images stand in front of a turn's text."""
    options = {"num_predict": NUM_OUTPUTS, "temperature": 0}
    messages = [{"role": "user", "content": "The", "images": ENCODED}]
    fields: dict[str, Any] = {"messages": messages, "options": options, "stream": False}
    answer = ask(serve, "/api/chat", model="gemma3", **fields)
    return answer["message"]["content"], answer["prompt_eval_count"]


@pytest.mark.parametrize(
    ("by_dialect", "turn"),
    [
        (by_chat, f"The{WHOLE}Paris{WHOLE}"),
        (by_messages, f"The{WHOLE}Paris{WHOLE}"),
        (by_ollama, f"{WHOLE}{WHOLE}The"),
    ],
)
def test_images_of_each_dialect(served: Serve, by_dialect: Any, turn: str) -> None:
    tokenizer = make_tokenizer(GEMMA)
    prompt = f"<bos><start_of_turn>user\n{turn}<end_of_turn>\n<start_of_turn>model\n"
    token_ids = tokenizer.encode(prompt, add_special_tokens=False).ids
    processor = Gemma3ImageProcessorPil(**tiny_gemma3.PROCESSOR)
    pixels = list(processor(images=opened(), return_tensors="pt")["pixel_values"])
    wanted = tiny_gemma3.GEMMA3.greedy_of(gemma3(tokenizer), token_ids, pixels, NUM_OUTPUTS)
    assert by_dialect(served) == (tokenizer.decode(wanted), len(token_ids))


@pytest.mark.parametrize(
    ("detail", "turn"),
    [("high", f"The{WIDE}Paris{TALL}"), ("low", f"The{SMALL}Paris{SMALL}")],
)
def test_images_in_tiles(served: Serve, detail: str, turn: str) -> None:
    tokenizer = make_tokenizer(SMOLVLM)
    prompt = f"<|im_start|>User: {turn}<end_of_utterance>\nAssistant:"
    token_ids = tokenizer.encode(prompt, add_special_tokens=False).ids
    is_cut = {"do_image_splitting": detail == "high"}
    processor = Idefics3ImageProcessorPil(**tiny_idefics3.PROCESSOR | is_cut)
    pixels: list[torch.Tensor] = [
        processor(images=[one], return_tensors="pt")["pixel_values"][0] for one in opened()
    ]
    wanted = tiny_idefics3.SMOLVLM.greedy_of(smolvlm(tokenizer), token_ids, pixels, NUM_OUTPUTS)
    messages = in_openais_words(detail=detail)
    answer = ask(served, "/v1/chat/completions", model="smolvlm", messages=messages, **GREEDY)
    assert answer["usage"]["prompt_tokens"] == len(token_ids)
    assert answer["choices"][0]["message"]["content"] == tokenizer.decode(wanted)


def opened() -> list[Any]:
    pillow = pytest.importorskip("PIL.Image")
    return [pillow.open(io.BytesIO(one)).convert("RGB") for one in IMAGES]
