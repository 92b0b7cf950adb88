"""Images as clients give them: the accepted ones, and the bound that a refusal names."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson
import pytest

from inference.protocol.generation import ChatInput
from inference.wire.common.parts import (
    ImageFile,
    ImageReading,
    ImageRules,
    base64_image,
    image_url,
    images_read,
)
from inference.wire.errors import ApiError, InvalidImageError, UnsupportedParameterError
from inference.wire.openai.chat import request as openai_chat
from tests.cases import each_case
from tests.inference.image_files import base64_of, data_uri, png

CAT = png(30, 20)


def _chat(*urls: str) -> bytes:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return orjson.dumps({"model": "tiny", "messages": [{"role": "user", "content": parts}]})


def _images(parsed: Any) -> list[ImageFile]:
    chat = parsed.generation.input
    assert isinstance(chat, ChatInput)
    return [image for message in chat.messages for image in message.images]  # type: ignore[misc]


def test_an_image_is_known_by_its_bytes() -> None:
    image = image_url(data_uri(CAT, "image/jpeg"), "x")
    assert image.digest == hashlib.sha256(CAT).hexdigest()
    assert (image.media_type, image.width_px, image.height_px) == ("image/png", 30, 20)
    assert (image.num_bytes, image.data, image.path) == (len(CAT), CAT, "x")
    assert image_url(image.data_uri, "x") == image


@each_case("head", ["DATA:;BASE64,", "data:image/png;name=a.png;base64,"])
def test_a_data_uri_may_declare_more_or_less(head: str) -> None:
    assert image_url(head + base64_of(CAT), "x").data == CAT


def test_base64_may_be_broken_into_lines() -> None:
    text = base64_of(CAT)
    assert base64_image(f"{text[:20]}\r\n{text[20:]}\n", "x").data == CAT


@each_case(
    ("rules", "problem"),
    [
        (ImageRules(max_bytes=len(CAT) - 1), f"{len(CAT)} bytes; at most {len(CAT) - 1}"),
        (ImageRules(max_bytes=10), "at most 10 are read"),
        (ImageRules(max_pixels=599), r"600 pixels \(30x20\); at most 599"),
    ],
)
def test_the_bound_is_named(rules: ImageRules, problem: str) -> None:
    with images_read(ImageReading(rules=rules)), pytest.raises(InvalidImageError, match=problem):
        image_url(data_uri(CAT), "messages[0]")


def test_what_fits_just_so_is_read() -> None:
    rules = ImageRules(max_bytes=len(CAT), max_pixels=600)
    with images_read(ImageReading(rules=rules)):
        assert image_url(data_uri(CAT), "x").num_bytes == len(CAT)


def test_what_was_stored_is_read_whatever_the_bounds_are_now() -> None:
    with images_read(ImageReading(rules=ImageRules(max_bytes=1, max_pixels=1), is_stored=True)):
        assert image_url(data_uri(CAT), "stored[0]").path is None


def test_addresses_are_refused_unless_somebody_fetches_them() -> None:
    with pytest.raises(UnsupportedParameterError, match="not fetched from addresses"):
        openai_chat.parse(_chat("https://example.org/a.png"))


def test_addresses_are_wanted_then_read() -> None:
    body = _chat("https://example.org/a.png", data_uri(png(1, 1)), "https://example.org/a.png")
    rules = ImageRules(fetches=True)
    reading = ImageReading(rules=rules)
    with images_read(reading):
        openai_chat.parse(body)
    path = "messages[0].content[0].image_url.url"
    assert reading.wanted == {"https://example.org/a.png": path}
    fetched = {"https://example.org/a.png": CAT}
    with images_read(ImageReading(rules=rules, fetched=fetched)):
        first, second, third = _images(openai_chat.parse(body))
    assert (first.data, second.width_px, third.data) == (CAT, 1, CAT)


def test_what_was_fetched_is_bounded_too() -> None:
    rules = ImageRules(fetches=True, max_pixels=10)
    with (
        images_read(ImageReading(rules=rules, fetched={"https://a": CAT})),
        pytest.raises(ApiError) as refused,
    ):
        openai_chat.parse(_chat("https://a"))
    assert refused.value.code == "invalid_image"
