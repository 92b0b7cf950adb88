"""Prompts with images that are divided, whose tokens are in several runs."""

from __future__ import annotations

from pathlib import Path

from msgspec import structs

from tests.inference.neuron.model_texts import model_text
from tests.inference.neuron.text.test_prompt_images import (
    PLACING_TEMPLATE,
    WIDE,
    _image,
    _prepare,
    _seeing,
    _user,
)


def test_an_image_in_tiles_has_a_run_of_tokens_for_each(seeing_dir: Path) -> None:
    """Each placeholder becomes its own image's text, tokenized with the words around it."""
    vision = _seeing(seeing_dir).report.vision
    assert vision is not None
    vision = structs.replace(
        vision,
        image_px=64,
        max_pixels=128**2,
        placeholder="<|vision_start|>",
        written="[<|image_pad|>]",
        division="tiles",
        part="{row}/{column}<|image_pad|>",
        row_break="\n",
        parts_end="\n\n[<|image_pad|>]",
    )
    text = model_text(seeing_dir, chat_template=PLACING_TEMPLATE, vision=vision)
    low = structs.replace(WIDE, is_low_detail=True)
    prepared = _prepare(text, _user("The", _image(90, 60), low, "capital", WIDE))
    (prompt,) = prepared.prompts
    text_of_prompt = "".join(text.tokenizer.bytes_of(token).decode() for token in prompt)
    pads = "<|image_pad|>" * 4
    tiles = f"1/1{pads}1/2{pads}\n2/1{pads}2/2{pads}\n\n[{pads}]"
    wide = f"1/1{pads}1/2{pads}\n\n[{pads}]"
    assert text_of_prompt == f"user\nThe{tiles}[{pads}]capital{wide}"
    assert [(one.grid, len(one.runs)) for one in prepared.images] == [
        ((5, 4, 4), 5),
        ((1, 4, 4), 1),
        ((3, 4, 4), 3),
    ]
    pad = vision.pad_token_id
    places = [index for index, token in enumerate(prompt) if token == pad]
    runs = [run for one in prepared.images for run in one.runs]
    assert [i for run in runs for i in range(run.first_token, run.end)] == places
    assert all(run.num_tokens == 4 for run in runs)
    sent = prepared.images[0].with_data(b"")
    assert sent.runs == list(prepared.images[0].runs) and sent.num_tokens == 20
