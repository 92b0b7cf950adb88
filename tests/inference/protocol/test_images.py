"""What of an image travels, and what a prompt has for it."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from inference.protocol.generation import (
    ChatInput,
    ChatMessage,
    GenerationRequest,
    Submit,
    decode_inbox_frame,
    encode_inbox_frame,
)
from inference.protocol.images import ImageRef, VisionInput, image_layout
from tests.cases import each_case

CAT = ImageRef(
    digest="c" * 64, media_type="image/png", width_px=640, height_px=480, num_bytes=1_000
)
TILES = VisionInput(
    pad_token_id=1,
    patch_px=16,
    merge=4,
    min_pixels=0,
    max_pixels=2048**2,
    image_px=512,
    placeholder="<image>",
    written="<fake_token_around_image><global-img><image><fake_token_around_image>",
    division="tiles",
    part="<fake_token_around_image><row_{row}_col_{column}><image>",
    row_break="\n",
    parts_end="\n\n<fake_token_around_image><global-img><image><fake_token_around_image>",
)
"""SmolVLM's."""


@each_case("size", [(640, 480), (480, 640), (3000, 20), (512, 512)], ids=str)
@each_case("is_low_detail", [False, True])
def test_the_text_of_tiles_is_transformers(size: tuple[int, int], is_low_detail: bool) -> None:
    """Its processor repeats the pad for each token; here that comes after tokenizing."""
    from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

    layout = image_layout(*size, TILES, is_low_detail=is_low_detail)
    processor = object.__new__(Idefics3Processor)
    processor.fake_image_token, processor.image_token = "<fake_token_around_image>", "<image>"
    processor.global_image_tag, processor.image_seq_len = "<global-img>", 1
    inputs = {"rows": [[layout.rows]], "cols": [[layout.columns]]}
    text = TILES.text_of(layout)
    assert text == processor.replace_image_token(inputs, 0)
    assert text.count("<image>") == layout.num_runs
    bound = TILES.most_text_bytes(layout)
    assert len(text.encode()) <= bound if layout.rows else bound == 0


def test_the_text_of_rows_is_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its module imports another one, which needs torchvision and is not called here. Both are
    # imported for this test alone.
    folder = "transformers.models.pixtral."
    sizes = SimpleNamespace(get_resize_output_image_size=None)
    monkeypatch.setitem(sys.modules, f"{folder}image_processing_pixtral", sizes)
    monkeypatch.setitem(sys.modules, f"{folder}processing_pixtral", sizes)
    del sys.modules[f"{folder}processing_pixtral"]
    from transformers.models.pixtral.processing_pixtral import PixtralProcessor

    rows = VisionInput(
        pad_token_id=1,
        patch_px=14,
        merge=2,
        min_pixels=0,
        max_pixels=1540**2,
        placeholder="[IMG]",
        written="[IMG][IMG_END]",
        division="rows",
        part="[IMG]",
        row_break="[IMG_BREAK]",
        parts_end="[IMG_END]",
    )
    processor = object.__new__(PixtralProcessor)
    processor.patch_size, processor.spatial_merge_size, processor.image_token = 14, 2, "[IMG]"
    processor.image_break_token, processor.image_end_token = "[IMG_BREAK]", "[IMG_END]"
    for size in ((640, 480), (480, 640), (3000, 20), (20, 20)):
        layout = image_layout(*size, rows)
        _, height, width = layout.grid
        inputs = {"image_sizes": [(14 * height, 14 * width)]}
        wanted = processor.replace_image_token(inputs, 0)
        per_run = layout.num_tokens(rows.merge) // layout.num_runs
        assert rows.text_of(layout).replace("[IMG]", "[IMG]" * per_run) == wanted
        assert len(rows.text_of(layout)) <= rows.most_text_bytes(layout)


def test_a_turn_keeps_its_images_between_its_texts() -> None:
    turn = ChatMessage(role="user", content="this\nis?", parts=["this", CAT, "is?"])
    submit = Submit(
        request_id="r",
        gateway_id="g",
        model="m",
        request=GenerationRequest(model="m", input=ChatInput(messages=[turn])),
        deadline_unix_s=1_900_000_000.0,
    )
    received = decode_inbox_frame(encode_inbox_frame(submit))
    assert isinstance(received, Submit)
    assert isinstance(received.request.input, ChatInput)
    (message,) = received.request.input.messages
    assert message == turn
    assert message.images == [CAT]
