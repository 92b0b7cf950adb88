"""Images in prompts: where they stand, how many tokens they are, and what has no place."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
from msgspec import structs

from inference.neuron.errors import RequestRefusedError
from inference.neuron.requests.requests import RedisImageReader
from inference.neuron.text.model_text import ModelText
from inference.neuron.text.prompt_images import PlacedImage, placed, sequence_images
from inference.neuron.text.prompts import Prepared, prepare
from inference.neuron.text.tokenize import count_tokens, tokenized
from inference.protocol.events import Accepted, Delta, Failed, Failure, Finished
from inference.protocol.generation import (
    ChatInput,
    ChatMessage,
    GenerationRequest,
    TokenCountRequest,
    TokenizeRequest,
    ToolCall,
)
from inference.protocol.images import ImageRef, TokenRun, VisionInput
from inference.protocol.inbox_parts import PART_BYTES, image_fields
from inference.protocol.keys import images_key
from inference.protocol.sampling import SamplingOptions
from tests.cases import each_case
from tests.inference.neuron.model_texts import model_text

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


def _seeing(directory: Path, **report: object) -> ModelText:
    text = model_text(directory)
    pad = text.tokenizer.encode("<|image_pad|>", add_special_tokens=False)
    vision = VisionInput(
        pad_token_id=pad[0], patch_px=16, merge=2, min_pixels=2048, max_pixels=65_536
    )
    return model_text(directory, vision=vision, **report)


def _prepare(text: ModelText, *messages: ChatMessage, **more: Any) -> Prepared:
    request = GenerationRequest(
        model="m",
        input=ChatInput(messages=list(messages), **more),
        sampling=SamplingOptions(max_tokens=1),
    )
    return prepare(request, text)


def _refusal(text: ModelText, *messages: ChatMessage) -> Failure:
    with pytest.raises(RequestRefusedError) as refused:
        _prepare(text, *messages)
    return refused.value.failure


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
    large = msgspec.structs.replace(VISION, max_pixels=16_777_216)
    image = _image(1024, 1024)
    low = msgspec.structs.replace(image, is_low_detail=True)
    _, found = placed([PAD, PAD], [image, low], large)
    assert [(_num_tokens(one), one.grid) for one in found] == [
        (1024, (1, 64, 64)),
        (256, (1, 32, 32)),
    ]
    sent = sequence_images(found, {one.image.digest: b"" for one in found})
    assert sent[0].digest == sent[1].digest and sent[0].content_id != sent[1].content_id


def test_without_images_the_tokens_are_as_they_are() -> None:
    given = [1, PAD, 2]
    assert placed(given, [], VISION) == (given, [])
    assert placed(given, [], None) == (given, [])


def test_images_stand_between_the_words_in_their_order(seeing_dir: Path) -> None:
    text = _seeing(seeing_dir)
    prepared = _prepare(text, _user("The", SMALL, "capital", WIDE))
    (prompt,) = prepared.prompts
    text_of_prompt = "".join(text.tokenizer.bytes_of(token).decode() for token in prompt)
    pad = "<|image_pad|>"
    assert text_of_prompt.split("<|im_end|>")[0] == (
        f"<|im_start|>user\nThe<|vision_start|>{pad * 4}<|vision_end|>"
        f"capital<|vision_start|>{pad * 8}<|vision_end|>"
    )
    assert [one.image for one in prepared.images] == [SMALL, WIDE]
    for one in prepared.images:
        (run,) = one.runs
        tokens = prompt[run.first_token : run.end]
        assert set(tokens) == {text.report.vision.pad_token_id}  # type: ignore[union-attr]


WRITTEN = "\n\n<|vision_start|><|image_pad|><|vision_end|>\n\n"
PLACING_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{{ part.text or '<|vision_start|>' }}{% endfor %}{% endif %}"
    "{% endfor %}"
)


def _placing(directory: Path) -> ModelText:
    """Gemma 3's way: the template writes what stands in front of an image, and all images are of
    one size."""
    vision = _seeing(directory).report.vision
    assert vision is not None
    vision = structs.replace(vision, image_px=96, placeholder="<|vision_start|>", written=WRITTEN)
    return model_text(directory, chat_template=PLACING_TEMPLATE, vision=vision)


def test_what_a_template_writes_for_an_image_is_replaced_before_it_is_tokenized(
    seeing_dir: Path,
) -> None:
    """Newlines around it become the tokens that they are together."""
    text = _placing(seeing_dir)
    prepared = _prepare(text, _user("The", SMALL, "capital", WIDE))
    (prompt,) = prepared.prompts
    text_of_prompt = "".join(text.tokenizer.bytes_of(token).decode() for token in prompt)
    pads = "<|image_pad|>" * 9
    one = f"\n\n<|vision_start|>{pads}<|vision_end|>\n\n"
    assert text_of_prompt == f"user\nThe{one}capital{one}"
    assert [(_num_tokens(one), one.grid) for one in prepared.images] == [(9, (1, 6, 6))] * 2
    whole = text_of_prompt.replace(pads, "<|image_pad|>")
    alone = text.tokenizer.encode(whole, add_special_tokens=False)
    pad = text.report.vision.pad_token_id  # type: ignore[union-attr]
    assert [token for token in prompt if token != pad] == [t for t in alone if t != pad]
    chat = ChatInput(messages=[_user("The", SMALL, "capital", WIDE)])
    assert tokenized("r", TokenizeRequest(model="m", input=chat), text).token_ids == prompt
    narrow = _prepare(text, _user(_image(1, 1000)))
    assert _num_tokens(narrow.images[0]) == 9


@each_case("pretended", ["<|vision_start|>", "<|image_pad|>"])
def test_a_text_may_not_pretend_to_be_a_placeholder(seeing_dir: Path, pretended: str) -> None:
    failure = _refusal(_placing(seeing_dir), _user(pretended, SMALL))
    assert failure.code == "invalid_value"
    assert "words that stand for an image" in failure.message


def test_images_are_counted_as_they_are_computed(seeing_dir: Path) -> None:
    text = _seeing(seeing_dir)
    chat = ChatInput(messages=[_user("The", SMALL), _user(WIDE)])
    (prompt,) = _prepare(text, *chat.messages).prompts
    assert count_tokens(TokenCountRequest(model="m", input=chat), text) == len(prompt)
    answer = tokenized("r", TokenizeRequest(model="m", input=chat), text)
    assert answer.token_ids == prompt


def test_what_a_tool_returned_may_be_an_image(seeing_dir: Path) -> None:
    call = ToolCall(id="c1", name="look", arguments="{}")
    result = ChatMessage(
        role="tool", content="The", tool_call_id="c1", parts=["The", SMALL], name="look"
    )
    text = model_text(
        seeing_dir,
        chat_template="{% for m in messages %}{% if m.tool_calls %}{{ m.tool_calls | tojson }}"
        "{% elif m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
        "{{ part.text or '<|image_pad|>' }}{% endfor %}{% endif %}{% endfor %}",
        vision=_seeing(seeing_dir).report.vision,
    )
    prepared = _prepare(
        text,
        ChatMessage(role="user", content="look"),
        ChatMessage(role="assistant", tool_calls=[call]),
        result,
    )
    assert [_num_tokens(one) for one in prepared.images] == [4]


def test_a_system_turn_that_has_no_place_leads_the_users_parts(seeing_dir: Path) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
        "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
        "{{ part.text or '<|image_pad|>' }}{% endfor %}{% endif %}{% endfor %}"
    )
    vision = _seeing(seeing_dir).report.vision
    text = model_text(seeing_dir, chat_template=template, vision=vision)
    (prompt,) = _prepare(
        text, ChatMessage(role="system", content="The"), _user(SMALL, "capital")
    ).prompts
    text_of_prompt = "".join(text.tokenizer.bytes_of(token).decode() for token in prompt)
    assert text_of_prompt == f"The\n\n{'<|image_pad|>' * 4}capital"


def test_a_model_that_reads_text_reports_it(byte_level_dir: Path) -> None:
    failure = _refusal(model_text(byte_level_dir), _user("The", SMALL))
    assert (failure.code, failure.param) == ("vision_unsupported", "messages")
    with pytest.raises(RequestRefusedError):
        count_tokens(
            TokenCountRequest(model="m", input=ChatInput(messages=[_user(SMALL)])),
            model_text(byte_level_dir),
        )


def test_a_text_may_not_pretend_to_be_an_image(seeing_dir: Path) -> None:
    failure = _refusal(_seeing(seeing_dir), _user("<|image_pad|>", SMALL))
    assert failure.code == "invalid_value"
    assert "words that stand for an image" in failure.message


def test_a_template_without_a_place_for_images_drops_none(seeing_dir: Path) -> None:
    vision = _seeing(seeing_dir).report.vision
    dropping = model_text(seeing_dir, chat_template="The", vision=vision)
    assert _refusal(dropping, _user(SMALL, WIDE)).code == "template_render_failed"
    failing = model_text(seeing_dir, chat_template="{{ raise_exception('no') }}", vision=vision)
    assert _refusal(failing, _user(SMALL)).code == "template_render_failed"


def test_an_image_too_narrow_is_refused_by_its_size(seeing_dir: Path) -> None:
    failure = _refusal(_seeing(seeing_dir), _user(_image(1, 1000)))
    assert failure.code == "invalid_image"
    assert "1x1000" in failure.message


def test_an_images_tokens_must_fit_the_context(seeing_dir: Path) -> None:
    failure = _refusal(_seeing(seeing_dir, context_tokens=50), _user(_image(256, 256)))
    assert failure.code == "context_length_exceeded"


def test_old_turns_with_images_are_left_out_where_they_may_be(seeing_dir: Path) -> None:
    text = _seeing(seeing_dir, context_tokens=50)
    prepared = _prepare(text, _user(_image(256, 256)), _user("The", SMALL), may_lose=[1])
    assert [one.image for one in prepared.images] == [SMALL]
    assert prepared.num_lost_turns == 1


def test_models_that_see_report_it(seeing_dir: Path, byte_level_dir: Path) -> None:
    assert "vision" in _seeing(seeing_dir).capabilities
    assert "vision" not in model_text(byte_level_dir).capabilities


def test_an_image_that_is_gone_is_no_other(seeing_dir: Path) -> None:
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


def test_images_reach_the_engine_beside_the_inbox(
    make_service: Callable[..., Any], fake_spec: Any, gateway: Any, seeing_dir: Path
) -> None:
    pad = _seeing(seeing_dir).report.vision.pad_token_id  # type: ignore[union-attr]
    service = make_service()
    spec = fake_spec(sees=pad)
    service.load_model(type(spec)(job_id="j1", model="m", source=spec.source, file=str(seeing_dir)))
    assert "vision" in gateway.wait_status("ready").capabilities
    request = GenerationRequest(
        model="m",
        input=ChatInput(messages=[_user("The", SMALL, "capital", WIDE)]),
        sampling=SamplingOptions(max_tokens=2),
    )
    small, wide = b"a" * SMALL.num_bytes, b"b" * WIDE.num_bytes
    _put_images(gateway.client, "gw-1", {SMALL.digest: small, WIDE.digest: wide})
    events = gateway.wait_end(gateway.submit(request=request))
    assert isinstance(events[0], Accepted)
    assert events[0].prompt_tokens >= 12
    assert isinstance(events[-1], Finished), events[-1]
    assert events[-1].usage.prompt_tokens == events[0].prompt_tokens
    assert any(isinstance(event, Delta) for event in events)
    (lost,) = gateway.wait_end(gateway.submit(request=request))
    assert isinstance(lost, Failed)
    assert lost.failure.code == "image_lost"


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
    (sent,) = sequence_images(prepared.images[:1], {prepared.images[0].image.digest: b""})
    assert sent.runs == list(prepared.images[0].runs) and sent.num_tokens == 20
