"""Images in prompts: where they stand, how many tokens they are, and what has no place."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

import pytest
import redis
from msgspec import structs

from inference.neuron.errors import RequestRefusedError
from inference.neuron.requests.requests import RedisImageReader
from inference.neuron.text.model_text import ModelText
from inference.neuron.text.prompt_images import PlacedImage, placed, sequence_images
from inference.neuron.text.prompts import Prepared
from inference.neuron.text.tokenize import count_tokens, tokenized
from inference.protocol.events import Failure, Finished
from inference.protocol.generation import (
    ChatInput,
    ChatMessage,
    TokenCountRequest,
    TokenizeRequest,
    ToolCall,
)
from inference.protocol.images import ImageRef, TokenRun, VisionInput
from inference.protocol.inbox_parts import PART_BYTES, image_fields
from inference.protocol.keys import images_key
from tests.inference.neuron.conftest import TestNeuron, failure_of
from tests.inference.neuron.model_texts import model_text
from tests.inference.neuron.prepared import prepared, refusal, request_for_model

PAD = 90
VISION = VisionInput(pad_token_id=PAD, patch_px=16, merge=2, min_pixels=2048, max_pixels=65_536)


def _image(width_px: int, height_px: int, name: str = "a") -> ImageRef:
    digest = hashlib.sha256(name.encode()).hexdigest()
    return ImageRef(
        digest=digest,
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


def _seeing(directory: Path, *, chat_template: str | None = None, **vision: Any) -> ModelText:
    pad = model_text(directory).tokenizer.encode("<|image_pad|>", add_special_tokens=False)
    context_tokens = vision.pop("context_tokens", 100)
    sees = structs.replace(VISION, pad_token_id=pad[0], **vision)
    return model_text(
        directory, chat_template=chat_template, vision=sees, context_tokens=context_tokens
    )


def _prepare(text: ModelText, *messages: ChatMessage, **more: Any) -> Prepared:
    return prepared(text, ChatInput(messages=list(messages), **more), max_tokens=1)


def _refusal(text: ModelText, *messages: ChatMessage) -> Failure:
    return refusal(text, ChatInput(messages=list(messages)), max_tokens=1)


def _written(text: ModelText, made: Prepared) -> str:
    (prompt,) = made.prompts
    return "".join(text.tokenizer.bytes_of(token).decode() for token in prompt)


def _num_tokens(found: PlacedImage) -> int:
    return sum(run.num_tokens for run in found.runs)


def test_each_pad_is_repeated_for_its_own_image() -> None:
    token_ids, found = placed([1, PAD, 2, PAD, 3], [SMALL, WIDE], VISION)
    assert token_ids == [1, *[PAD] * 4, 2, *[PAD] * 8, 3]
    assert found == [
        PlacedImage(SMALL, (TokenRun(1, 4),), (1, 4, 4)),
        PlacedImage(WIDE, (TokenRun(6, 8),), (1, 4, 8)),
    ]


def test_an_image_in_low_detail_has_fewer_tokens() -> None:
    large = structs.replace(VISION, max_pixels=16_777_216)
    image = _image(1024, 1024)
    low = structs.replace(image, is_low_detail=True)
    _, found = placed([PAD, PAD], [image, low], large)
    assert [(_num_tokens(one), one.grid) for one in found] == [
        (1024, (1, 64, 64)),
        (256, (1, 32, 32)),
    ]
    sent = sequence_images(found, {one.image.digest: b"" for one in found})
    assert sent[0].digest == sent[1].digest and sent[0].content_id != sent[1].content_id


def test_without_images_the_tokens_are_as_they_are() -> None:
    given = [1, PAD, 2]
    assert placed(given, [], VISION) == placed(given, [], None) == (given, [])


def test_images_stand_between_the_words_and_are_counted(seeing_dir: Path) -> None:
    text = _seeing(seeing_dir)
    chat = ChatInput(messages=[_user("The", SMALL, "capital", WIDE)])
    made = _prepare(text, *chat.messages)
    pad = "<|image_pad|>"
    assert _written(text, made).split("<|im_end|>")[0] == (
        f"<|im_start|>user\nThe<|vision_start|>{pad * 4}<|vision_end|>"
        f"capital<|vision_start|>{pad * 8}<|vision_end|>"
    )
    (prompt,) = made.prompts
    assert [one.image for one in made.images] == [SMALL, WIDE]
    for one in made.images:
        (run,) = one.runs
        tokens = prompt[run.first_token : run.end]
        assert set(tokens) == {text.report.vision.pad_token_id}  # type: ignore[union-attr]
    assert count_tokens(TokenCountRequest(model="m", input=chat), text) == len(prompt)
    assert tokenized("r", TokenizeRequest(model="m", input=chat), text).token_ids == prompt


WRITTEN = "\n\n<|vision_start|><|image_pad|><|vision_end|>\n\n"
PLACING_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{{ part.text or '<|vision_start|>' }}{% endfor %}{% endif %}"
    "{% endfor %}"
)


def _placing(directory: Path) -> ModelText:
    """Gemma 3's way: the template writes what stands in front of an image, and all images are of
    one size."""
    places = {"image_px": 96, "placeholder": "<|vision_start|>", "written": WRITTEN}
    return _seeing(directory, chat_template=PLACING_TEMPLATE, **places)


def test_what_a_template_writes_for_an_image_is_replaced_before_it_is_tokenized(
    seeing_dir: Path,
) -> None:
    """Newlines around it become the tokens that they are together."""
    text = _placing(seeing_dir)
    made = _prepare(text, _user("The", SMALL, "capital", WIDE))
    (prompt,) = made.prompts
    pads = "<|image_pad|>" * 9
    one = f"\n\n<|vision_start|>{pads}<|vision_end|>\n\n"
    assert _written(text, made) == f"user\nThe{one}capital{one}"
    assert [(_num_tokens(one), one.grid) for one in made.images] == [(9, (1, 6, 6))] * 2
    whole = _written(text, made).replace(pads, "<|image_pad|>")
    alone = text.tokenizer.encode(whole, add_special_tokens=False)
    pad = text.report.vision.pad_token_id  # type: ignore[union-attr]
    assert [token for token in prompt if token != pad] == [t for t in alone if t != pad]
    chat = ChatInput(messages=[_user("The", SMALL, "capital", WIDE)])
    assert tokenized("r", TokenizeRequest(model="m", input=chat), text).token_ids == prompt
    assert _num_tokens(_prepare(text, _user(_image(1, 1000))).images[0]) == 9


PARTS = (
    "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{{ part.text or '<|image_pad|>' }}{% endfor %}{% endif %}{% endfor %}"
)


def test_what_a_tool_returned_may_be_an_image(seeing_dir: Path) -> None:
    template = "{% for m in messages %}{{ (m.tool_calls or '') | tojson }}" + PARTS
    text = _seeing(seeing_dir, chat_template=template)
    call = ToolCall(id="c1", name="look", arguments="{}")
    result = ChatMessage(
        role="tool", content="The", tool_call_id="c1", parts=["The", SMALL], name="look"
    )
    asked = ChatMessage(role="assistant", content="", tool_calls=[call])
    made = _prepare(text, ChatMessage(role="user", content="look"), asked, result)
    assert [_num_tokens(one) for one in made.images] == [4]


def test_a_system_turn_that_has_no_place_leads_the_users_parts(seeing_dir: Path) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    )
    text = _seeing(seeing_dir, chat_template=template + PARTS)
    system = ChatMessage(role="system", content="The")
    made = _prepare(text, system, _user(SMALL, "capital"))
    assert _written(text, made) == f"The\n\n{'<|image_pad|>' * 4}capital"


def test_images_that_have_no_place_are_refused(seeing_dir: Path, byte_level_dir: Path) -> None:
    narrow, large = _image(1, 1000), _image(256, 256)
    seeing, blind = _seeing(seeing_dir), model_text(byte_level_dir)
    placing, short = _placing(seeing_dir), _seeing(seeing_dir, context_tokens=50)
    dropping, failing = (
        _seeing(seeing_dir, chat_template=one) for one in ("The", "{{ raise_exception('no') }}")
    )
    for text, message, code, words in [
        (blind, _user("The", SMALL), "vision_unsupported", ""),
        (seeing, _user("<|image_pad|>", SMALL), "invalid_value", "words that stand for an image"),
        (placing, _user("<|image_pad|>", SMALL), "invalid_value", "words that stand for an image"),
        (placing, _user("<|vision_start|>", SMALL), "invalid_value", "words that stand for"),
        (dropping, _user(SMALL, WIDE), "template_render_failed", ""),
        (failing, _user(SMALL), "template_render_failed", ""),
        (seeing, _user(narrow), "invalid_image", "1x1000"),
        (short, _user(large), "context_length_exceeded", ""),
    ]:
        failure = _refusal(text, message)
        assert failure.code == code and words in failure.message
    assert _refusal(blind, _user(SMALL)).param == "messages"
    counted = TokenCountRequest(model="m", input=ChatInput(messages=[_user(SMALL)]))
    with pytest.raises(RequestRefusedError):
        count_tokens(counted, blind)
    assert "vision" in seeing.capabilities and "vision" not in blind.capabilities
    made = _prepare(short, _user(large), _user("The", SMALL), may_lose=[1])
    assert [one.image for one in made.images] == [SMALL], "old turns go where they may"
    assert made.num_lost_turns == 1


def test_an_image_that_is_gone_is_no_other() -> None:
    _, found = placed([PAD], [SMALL], VISION)
    with pytest.raises(RequestRefusedError) as refused:
        sequence_images(found, {WIDE.digest: b"b"})
    assert refused.value.failure.code == "image_lost"


def test_a_request_has_its_own_images(redis_db: redis.Redis) -> None:
    small, wide = b"a" * SMALL.num_bytes, b"b" * WIDE.num_bytes
    _put_images(redis_db, "r1", {SMALL.digest: small, WIDE.digest: wide})
    reader = RedisImageReader(redis_db, neuron="n1")
    assert reader.read("r1", [SMALL, WIDE]) == {SMALL.digest: small, WIDE.digest: wide}
    assert reader.read("r2", [SMALL, WIDE]) == {}


def test_a_large_image_is_read_in_pieces(redis_db: redis.Redis) -> None:
    data = random.Random(0).randbytes(40 * PART_BYTES + 1)
    large = structs.replace(SMALL, num_bytes=len(data))
    _put_images(redis_db, "r1", {large.digest: data})
    key = images_key("n1", "r1")
    assert max(map(len, redis_db.hvals(key))) == PART_BYTES
    reader = RedisImageReader(redis_db, neuron="n1")
    assert reader.read("r1", [large, large]) == {large.digest: data}
    redis_db.hdel(key, f"{large.digest}:40")
    assert reader.read("r1", [large]) == {}


def _put_images(client: redis.Redis, request_id: str, files: dict[str, bytes]) -> None:
    for digest, data in files.items():
        fields = image_fields(digest, data)
        client.hset(images_key("n1", request_id), mapping=fields)  # type: ignore[arg-type]


def test_images_reach_the_engine_beside_the_inbox(neuron: TestNeuron, seeing_dir: Path) -> None:
    pad = _seeing(seeing_dir).report.vision.pad_token_id  # type: ignore[union-attr]
    assert "vision" in neuron.load(sees=pad, file=str(seeing_dir)).capabilities
    chat = ChatInput(messages=[_user("The", SMALL, "capital", WIDE)])
    request = request_for_model(chat, max_tokens=2)
    small, wide = b"a" * SMALL.num_bytes, b"b" * WIDE.num_bytes
    _put_images(neuron.gateway.client, "gw-1", {SMALL.digest: small, WIDE.digest: wide})
    events = neuron.ask(request=request)
    assert events[0].prompt_tokens >= 12
    assert isinstance(events[-1], Finished), events[-1]
    assert events[-1].usage.prompt_tokens == events[0].prompt_tokens
    assert failure_of(neuron.ask(request=request)).code == "image_lost"


def test_an_image_in_tiles_has_a_run_of_tokens_for_each(seeing_dir: Path) -> None:
    """Each placeholder becomes its own image's text, tokenized with the words around it."""
    text = _seeing(
        seeing_dir,
        chat_template=PLACING_TEMPLATE,
        image_px=64,
        max_pixels=128**2,
        placeholder="<|vision_start|>",
        written="[<|image_pad|>]",
        division="tiles",
        part="{row}/{column}<|image_pad|>",
        row_break="\n",
        parts_end="\n\n[<|image_pad|>]",
    )
    low = structs.replace(WIDE, is_low_detail=True)
    made = _prepare(text, _user("The", _image(90, 60), low, "capital", WIDE))
    pads = "<|image_pad|>" * 4
    tiles = f"1/1{pads}1/2{pads}\n2/1{pads}2/2{pads}\n\n[{pads}]"
    wide = f"1/1{pads}1/2{pads}\n\n[{pads}]"
    assert _written(text, made) == f"user\nThe{tiles}[{pads}]capital{wide}"
    grids = [(one.grid, len(one.runs)) for one in made.images]
    assert grids == [((5, 4, 4), 5), ((1, 4, 4), 1), ((3, 4, 4), 3)]
    pad = text.report.vision.pad_token_id  # type: ignore[union-attr]
    places = [index for index, token in enumerate(made.prompts[0]) if token == pad]
    runs = [run for one in made.images for run in one.runs]
    assert [i for run in runs for i in range(run.first_token, run.end)] == places
    assert all(run.num_tokens == 4 for run in runs)
    (sent,) = sequence_images(made.images[:1], {made.images[0].image.digest: b""})
    assert sent.runs == list(made.images[0].runs) and sent.num_tokens == 20
