"""Images in prompts: where they stand, how many tokens they are, and what has no place."""

from __future__ import annotations

import hashlib
import random
from itertools import filterfalse
from pathlib import Path
from typing import Any

import pytest
import redis
from msgspec import structs

from inference.neuron.errors import RequestRefusedError
from inference.neuron.requests.requests import RedisImageReader
from inference.neuron.text.inputs import count_tokens, tokenized
from inference.neuron.text.model_text import ModelText
from inference.neuron.text.prompt_images import PlacedImage, placed, sequence_images
from inference.neuron.text.prompts import Prepared
from inference.protocol.delivery import PART_BYTES, image_fields
from inference.protocol.events import Failure, Finished
from inference.protocol.generation import (
    ChatInput,
    ChatMessage,
    TokenCountRequest,
    TokenizeRequest,
    ToolCall,
)
from inference.protocol.images import ImageRef, VisionInput
from inference.protocol.keys import images_key
from tests.inference.neuron.conftest import TestNeuron, failure_of
from tests.inference.neuron.model_texts import model_text, prepared, refusal, request_for_model

PAD = 90
VISION = VisionInput(pad_token_id=PAD, patch_px=16, merge=2, min_pixels=2048, max_pixels=65_536)
PADS = "<|image_pad|>"
PARTS = (
    "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{{ part.text or '<|image_pad|>' }}{% endfor %}{% endif %}{% endfor %}"
)
PLACING_TEMPLATE = "{% for m in messages %}{{ m.role }}\n" + PARTS.replace(PADS, "<|vision_start|>")


def _image(width_px: int, height_px: int, name: str = "a") -> ImageRef:
    return ImageRef(
        digest=hashlib.sha256(name.encode()).hexdigest(),
        media_type="image/png",
        width_px=width_px,
        height_px=height_px,
        num_bytes=len(name),
    )


SMALL, WIDE = _image(64, 64), _image(128, 64, "b")
"""Four tokens and eight."""


def _user(*parts: str | ImageRef) -> ChatMessage:
    text_of_prompt = "\n".join(part for part in parts if isinstance(part, str))
    return ChatMessage(role="user", content=text_of_prompt, parts=list(parts))


TWO = ChatInput(messages=[_user("The", SMALL, "capital", WIDE)])


def _seeing(
    directory: Path, template: str | None = None, context_tokens: int = 100, **vision: Any
) -> ModelText:
    sees = structs.replace(VISION, pad_token_id=_pad(model_text(directory)), **vision)
    return model_text(directory, chat_template=template, vision=sees, context_tokens=context_tokens)


def _placing(directory: Path, **more: Any) -> ModelText:
    """Gemma 3's way: the template writes what stands in front of an image, and all images are of
    one size."""
    written = {"image_px": 96, "written": f"\n\n<|vision_start|>{PADS}<|vision_end|>\n\n"}
    places = written | {"placeholder": "<|vision_start|>"} | more
    return _seeing(directory, PLACING_TEMPLATE, **places)


def _pad(text: ModelText) -> int:
    (pad,) = text.tokenizer.encode(PADS, add_special_tokens=False)
    return pad


def _prepare(text: ModelText, *messages: ChatMessage, **more: Any) -> Prepared:
    return prepared(text, ChatInput(messages=list(messages), **more), max_tokens=1)


def _refusal(text: ModelText, *messages: ChatMessage) -> Failure:
    return refusal(text, ChatInput(messages=list(messages)), max_tokens=1)


def _written(text: ModelText, made: Prepared) -> str:
    (prompt,) = made.prompts
    return "".join(text.tokenizer.bytes_of(token).decode() for token in prompt)


def _sizes(found: list[PlacedImage]) -> list[tuple[int, Any]]:
    return [(sum(run.num_tokens for run in one.runs), one.grid) for one in found]


def test_images_stand_between_the_words_and_are_counted(seeing_dir: Path) -> None:
    text = _seeing(seeing_dir)
    made = _prepare(text, *TWO.messages)
    assert _written(text, made).split("<|im_end|>")[0] == (
        f"<|im_start|>user\nThe<|vision_start|>{PADS * 4}<|vision_end|>"
        f"capital<|vision_start|>{PADS * 8}<|vision_end|>"
    )
    (prompt,) = made.prompts
    assert [(one.image, one.grid) for one in made.images] == [(SMALL, (1, 4, 4)), (WIDE, (1, 4, 8))]
    for one in made.images:
        (run,) = one.runs
        assert set(prompt[run.first_token : run.end]) == {_pad(text)}
    assert count_tokens(TokenCountRequest(model="m", input=TWO), text) == len(prompt)
    assert tokenized("r", TokenizeRequest(model="m", input=TWO), text).token_ids == prompt
    image = _image(1024, 1024)
    large = structs.replace(VISION, max_pixels=16_777_216)
    _, found = placed([PAD, PAD], [image, structs.replace(image, is_low_detail=True)], large)
    assert _sizes(found) == [(1024, (1, 64, 64)), (256, (1, 32, 32))]
    sent = sequence_images(found, {one.image.digest: b"" for one in found})
    assert sent[0].digest == sent[1].digest and sent[0].content_id != sent[1].content_id
    with pytest.raises(RequestRefusedError) as refused:
        sequence_images(found, {WIDE.digest: b"b"})
    assert refused.value.failure.code == "image_lost", "one that is gone is no other"
    given = [1, PAD, 2]
    assert placed(given, [], VISION) == placed(given, [], None) == (given, [])


def test_images_of_tools_and_beside_a_system_turn_that_has_no_place(seeing_dir: Path) -> None:
    text = _seeing(seeing_dir, "{% for m in messages %}{{ (m.tool_calls or '') | tojson }}" + PARTS)
    call = ToolCall(id="c1", name="look", arguments="{}")
    result = ChatMessage(
        role="tool", content="The", tool_call_id="c1", parts=["The", SMALL], name="look"
    )
    asked = ChatMessage(role="assistant", content="", tool_calls=[call])
    made = _prepare(text, ChatMessage(role="user", content="look"), asked, result)
    assert _sizes(made.images) == [(4, (1, 4, 4))]
    refuses = "{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    text = _seeing(seeing_dir, "{% for m in messages %}" + refuses + PARTS)
    system = ChatMessage(role="system", content="The")
    made = _prepare(text, system, _user(SMALL, "capital"))
    assert _written(text, made) == f"The\n\n{PADS * 4}capital", "it leads the user's parts"


def test_images_that_have_no_place_are_refused(seeing_dir: Path, byte_level_dir: Path) -> None:
    narrow, large = _image(1, 1000), _image(256, 256)
    seeing, blind = _seeing(seeing_dir), model_text(byte_level_dir)
    placing, short = _placing(seeing_dir), _seeing(seeing_dir, context_tokens=50)
    dropping, failing = (_seeing(seeing_dir, one) for one in ("The", "{{ raise_exception('no') }}"))
    for text, message, code, words in [
        (blind, _user("The", SMALL), "vision_unsupported", ""),
        (seeing, _user(PADS, SMALL), "invalid_value", "words that stand for an image"),
        (placing, _user(PADS, SMALL), "invalid_value", "words that stand for an image"),
        (placing, _user("<|vision_start|>", SMALL), "invalid_value", "words that stand for"),
        (dropping, _user(SMALL, WIDE), "template_render_failed", ""),
        (failing, _user(SMALL), "template_render_failed", ""),
        (seeing, _user(narrow), "invalid_image", "1x1000"),
        (short, _user(large), "context_length_exceeded", ""),
    ]:
        failure = _refusal(text, message)
        assert failure.code == code and words in failure.message
    assert _refusal(blind, _user(SMALL)).param == "messages"
    with pytest.raises(RequestRefusedError):
        count_tokens(TokenCountRequest(model="m", input=TWO), blind)
    assert "vision" in seeing.capabilities and "vision" not in blind.capabilities
    made = _prepare(short, _user(large), _user("The", SMALL), may_lose=[1])
    assert [one.image for one in made.images] == [SMALL], "old turns go where they may"
    assert made.num_lost_turns == 1


def _put_images(client: redis.Redis, request_id: str, files: dict[str, bytes]) -> None:
    for digest, data in files.items():
        fields = image_fields(digest, data)
        client.hset(images_key("n1", request_id), mapping=fields)  # type: ignore[arg-type]


BYTES = {SMALL.digest: b"a" * SMALL.num_bytes, WIDE.digest: b"b" * WIDE.num_bytes}


def test_a_request_has_its_own_images_read_in_pieces(redis_db: redis.Redis) -> None:
    reader = RedisImageReader(redis_db, neuron="n1")
    _put_images(redis_db, "r1", BYTES)
    assert reader.read("r1", [SMALL, WIDE]) == BYTES
    assert reader.read("r2", [SMALL, WIDE]) == {}
    data = random.Random(0).randbytes(40 * PART_BYTES + 1)
    large = structs.replace(SMALL, num_bytes=len(data))
    _put_images(redis_db, "r3", {large.digest: data})
    key = images_key("n1", "r3")
    assert max(map(len, redis_db.hvals(key))) == PART_BYTES
    assert reader.read("r3", [large, large]) == {large.digest: data}
    redis_db.hdel(key, f"{large.digest}:40")
    assert reader.read("r3", [large]) == {}


def test_images_reach_the_engine_beside_the_inbox(neuron: TestNeuron, seeing_dir: Path) -> None:
    state = neuron.load(sees=_pad(model_text(seeing_dir)), file=str(seeing_dir))
    assert "vision" in state.capabilities
    request = request_for_model(TWO, max_tokens=2)
    _put_images(neuron.gateway.client, "gw-1", BYTES)
    accepted, *_, end = neuron.ask(request=request)
    assert isinstance(end, Finished), end
    assert end.usage.prompt_tokens == accepted.prompt_tokens >= 12
    assert failure_of(neuron.ask(request=request)).code == "image_lost"


def test_an_image_in_tiles_has_a_run_of_tokens_for_each(seeing_dir: Path) -> None:
    text = _placing(
        seeing_dir,
        image_px=64,
        max_pixels=128**2,
        written=f"[{PADS}]",
        division="tiles",
        part="{row}/{column}" + PADS,
        row_break="\n",
        parts_end=f"\n\n[{PADS}]",
    )
    low = structs.replace(WIDE, is_low_detail=True)
    made = _prepare(text, _user("The", _image(90, 60), low, "capital", WIDE))
    pads = PADS * 4
    tiles = f"1/1{pads}1/2{pads}\n2/1{pads}2/2{pads}\n\n[{pads}]"
    wide = f"1/1{pads}1/2{pads}\n\n[{pads}]"
    assert _written(text, made) == f"user\nThe{tiles}[{pads}]capital{wide}"
    # It is tokenized with the words around it: newlines become the tokens that they are together.
    alone = text.tokenizer.encode(
        _written(text, made).replace(pads, PADS), add_special_tokens=False
    )
    is_pad = _pad(text).__eq__
    assert [*filterfalse(is_pad, made.prompts[0])] == [*filterfalse(is_pad, alone)]
    same = _placing(seeing_dir)  # all images are of one size
    assert _sizes(_prepare(same, *TWO.messages).images) == [(9, (1, 6, 6))] * 2
    grids = [(one.grid, len(one.runs)) for one in made.images]
    assert grids == [((5, 4, 4), 5), ((1, 4, 4), 1), ((3, 4, 4), 3)]
    places = [index for index, token in enumerate(made.prompts[0]) if token == _pad(text)]
    runs = [run for one in made.images for run in one.runs]
    assert [i for run in runs for i in range(run.first_token, run.end)] == places
    assert all(run.num_tokens == 4 for run in runs)
    (sent,) = sequence_images(made.images[:1], {made.images[0].image.digest: b""})
    assert sent.runs == list(made.images[0].runs) and sent.num_tokens == 20
