"""Images that are divided, through a running server and real, tiny models: a prompt has the text
and the tokens that transformers' processor makes of it, in high detail and in low, and the answer
is transformers'."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import PreTrainedModel
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

from tests.inference.image_files import data_uri, png
from tests.inference.models.vision import tiny_idefics3, tiny_pixtral
from tests.live.catalogue import create_model
from tests.live.conftest import with_caches
from tests.live.real_model.test_images import make_tokenizer
from tests.live.serving import WAIT_TIMEOUT_S, Serve

NUM_OUTPUTS = 6
AROUND, WHOLE, PAD = "<fake_token_around_image>", "<global-img>", "<image>"
SPECIAL = "<|im_start|>", "<end_of_utterance>", AROUND, WHOLE, PAD, "<row_1_col_1>", "<row_2_col_1>"
TEMPLATE = (
    "<|im_start|>{% for m in messages %}{{ m.role | capitalize }}"
    "{% if m.content is string %}: {{ m.content }}{% else %}: {% for part in m.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""A template that writes turns and images as SmolVLM's own does."""
ROWS_TEMPLATE = (
    "{% for m in messages %}[INST]{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}[IMG]{% else %}{{ part.text }}"
    "{% endif %}{% endfor %}{% endif %}[/INST]{% endfor %}"
)
"""The same as Mistral Small's own does."""
IMAGES = png(40, 9), png(7, 30)
PADS = PAD * tiny_idefics3.TILE_TOKENS
WRITTEN = f"{AROUND}{WHOLE}{PADS}{AROUND}"


def tile(row: int, column: int) -> str:
    return f"{AROUND}<row_{row}_col_{column}>{PADS}"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One model. ``turns``: what its prompt has for a turn, by detail; ``pixels``: what its
    processor makes of the images."""

    special: tuple[str, ...]
    pad: str
    template: str
    prompt: str
    turns: dict[str, str]
    make: Callable[[int, int], PreTrainedModel]
    save_processor: Callable[[Path], Path]
    pixels: Callable[[list[Any], str], list[torch.Tensor]]
    greedy: Callable[[PreTrainedModel, list[int], list[torch.Tensor], int], list[int]]


def tiles_of(images: list[Any], detail: str) -> list[torch.Tensor]:
    is_cut = {"do_image_splitting": detail == "high"}
    processor = Idefics3ImageProcessorPil(**tiny_idefics3.PROCESSOR | is_cut)
    return [processor(images=[one], return_tensors="pt")["pixel_values"][0] for one in images]


def pixels_of(images: list[Any], detail: str) -> list[torch.Tensor]:
    unit = {"patch_size": {"height": 4, "width": 4}}
    processor = PixtralImageProcessorPil(**tiny_pixtral.PROCESSOR | unit)
    return [processor(images=[one], return_tensors="pt")["pixel_values"][0] for one in images]


WIDE = f"{tile(1, 1)}{tile(1, 2)}{tile(1, 3)}\n\n{WRITTEN}"
TALL = f"{tile(1, 1)}\n{tile(2, 1)}\n{tile(3, 1)}\n\n{WRITTEN}"
ROWS = "[IMG_BREAK]".join(["[IMG]" * 6] * 2) + "[IMG_END]"
COLUMN = "[IMG_BREAK]".join(["[IMG]" * 2] * 6) + "[IMG_END]"
CASES = {
    "smolvlm": Case(
        special=SPECIAL,
        pad=PAD,
        template=TEMPLATE,
        prompt="<|im_start|>User: {}<end_of_utterance>\nAssistant:",
        turns={"high": f"The{WIDE}Paris{TALL}", "low": f"The{WRITTEN}Paris{WRITTEN}"},
        make=tiny_idefics3.smolvlm_of,
        save_processor=tiny_idefics3.SMOLVLM.save_processor,
        pixels=tiles_of,
        greedy=tiny_idefics3.SMOLVLM.greedy_of,
    ),
    "mistral3": Case(
        special=("[INST]", "[/INST]", "<end_of_utterance>", "[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        pad="[IMG]",
        template=ROWS_TEMPLATE,
        prompt="[INST]{}[/INST]",
        turns=dict.fromkeys(("high", "low"), f"The{ROWS}Paris{COLUMN}"),
        make=tiny_pixtral.mistral3_of,
        save_processor=tiny_pixtral.MISTRAL3.save_processor,
        pixels=pixels_of,
        greedy=tiny_pixtral.MISTRAL3.greedy_of,
    ),
}


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, model_cache_dir: Path, native_cache_dir: Path
) -> Iterator[Serve]:
    """Every case's model, by its name."""
    data_dir = with_caches(tmp_path_factory.mktemp("live"), model_cache_dir, native_cache_dir)
    serve = Serve(data_dir, "--no-model")
    try:
        serve.wait_ready()
        for name, case in CASES.items():
            create_model(
                serve,
                name=name,
                source=f"path:{save(case, tmp_path_factory.mktemp(name))}",
                dtype="float32",
                kv_dtype="fp32",
                kv_memory_bytes=64 * 2**20,
            )
        yield serve
    finally:
        serve.end()


def save(case: Case, folder: Path) -> Path:
    tokenizer = make_tokenizer(case.special)
    reference_of(case).save_pretrained(folder)
    case.save_processor(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<end_of_utterance>", "chat_template": case.template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def reference_of(case: Case) -> PreTrainedModel:
    tokenizer = make_tokenizer(case.special)
    return case.make(tokenizer.get_vocab_size(), tokenizer.token_to_id(case.pad))


def body(detail: str) -> dict[str, Any]:
    urls = [
        {"type": "image_url", "image_url": {"url": data_uri(one), "detail": detail}}
        for one in IMAGES
    ]
    words = [{"type": "text", "text": text} for text in ("The", "Paris")]
    messages = [{"role": "user", "content": [words[0], urls[0], words[1], urls[1]]}]
    return {"max_tokens": NUM_OUTPUTS, "temperature": 0, "messages": messages}


@pytest.mark.slow
@pytest.mark.parametrize("detail", ["high", "low"])
@pytest.mark.parametrize("name", CASES)
def test_divided_images(served: Serve, name: str, detail: str) -> None:
    """Pixtral's are small enough in low detail as they are."""
    pillow = pytest.importorskip("PIL.Image")
    case = CASES[name]
    tokenizer = make_tokenizer(case.special)
    prompt = case.prompt.format(case.turns[detail])
    token_ids = tokenizer.encode(prompt, add_special_tokens=False).ids
    opened = [pillow.open(io.BytesIO(one)).convert("RGB") for one in IMAGES]
    pixels = case.pixels(opened, detail)
    wanted = case.greedy(reference_of(case), token_ids, pixels, NUM_OUTPUTS)
    given = {"model": name} | body(detail)
    response = httpx.post(f"{served.url}/v1/chat/completions", json=given, timeout=WAIT_TIMEOUT_S)
    assert response.status_code == 200, f"{response.text}\n{served.describe()}"
    answer = response.json()
    assert answer["usage"]["prompt_tokens"] == len(token_ids)
    assert answer["choices"][0]["message"]["content"] == tokenizer.decode(wanted)
