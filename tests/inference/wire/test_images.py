"""Images as clients give them: the accepted ones, the bound that a refusal names, and their formats
and sizes."""

from __future__ import annotations

import contextlib
import hashlib
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.protocol.generation import ChatInput
from inference.wire.common.image_header import ImageHeader, ImageHeaderError, read_header
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
from tests.inference.image_files import (
    base64_of,
    bmp,
    bmp_core,
    data_uri,
    exif,
    gif,
    jpeg,
    png,
    webp,
    webp_extended,
    webp_lossless,
    webp_lossy,
)

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


def test_a_data_uri_may_declare_more_or_less_and_base64_may_be_broken_into_lines() -> None:
    text = base64_of(CAT)
    for head in ("DATA:;BASE64,", "data:image/png;name=a.png;base64,"):
        assert image_url(head + text, "x").data == CAT
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


@each_case(
    "reading",
    [
        ImageReading(rules=ImageRules(max_bytes=len(CAT), max_pixels=600)),
        ImageReading(rules=ImageRules(max_bytes=1, max_pixels=1), is_stored=True),
    ],
    ids=["it fits just so", "it was stored, whatever the bounds are now"],
)
def test_what_is_within_the_bounds_is_read(reading: ImageReading) -> None:
    with images_read(reading):
        image = image_url(data_uri(CAT), "x")
    assert (image.num_bytes, image.path) == (len(CAT), None if reading.is_stored else "x")


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


def test_what_was_fetched_is_bounded_and_nothing_fetched_unless_somebody_does() -> None:
    rules = ImageRules(fetches=True, max_pixels=10)
    with (
        images_read(ImageReading(rules=rules, fetched={"https://a": CAT})),
        pytest.raises(ApiError) as refused,
    ):
        openai_chat.parse(_chat("https://a"))
    assert refused.value.code == "invalid_image"
    with pytest.raises(UnsupportedParameterError, match="not fetched from addresses"):
        openai_chat.parse(_chat("https://example.org/a.png"))


WHOLE = [
    png(30, 20),
    jpeg(300, 200, exif=exif(6)),
    gif(30, 20, (0, 0, 30, 20)),
    bmp(30, 20),
    webp(webp_extended(300, 200), webp_lossy(300, 200)),
]


@each_case(
    ("data", "media_type", "size"),
    [
        (png(30, 20), "image/png", (30, 20)),
        (png(30, 20, (b"eXIf", exif(6))), "image/png", (20, 30)),
        (png(30, 20, (b"acTL", b"\x00\x00\x00\x01" + bytes(4))), "image/png", (30, 20)),
        (jpeg(300, 200), "image/jpeg", (300, 200)),
        (jpeg(300, 200, frame=0xC2), "image/jpeg", (300, 200)),
        (jpeg(300, 200, exif=exif(3)), "image/jpeg", (300, 200)),
        (jpeg(300, 200, exif=exif(5, ">")), "image/jpeg", (200, 300)),
        (jpeg(300, 200, exif=exif(8)), "image/jpeg", (200, 300)),
        (jpeg(300, 200, exif=b"II*\x00\xff\xff\xff\xff"), "image/jpeg", (300, 200)),
        (gif(30, 20, (0, 0, 30, 20)), "image/gif", (30, 20)),
        (gif(30, 20, (10, 5, 30, 20)), "image/gif", (40, 25)),
        (bmp(30, 20), "image/bmp", (30, 20)),
        (bmp(30, -20), "image/bmp", (30, 20)),
        (bmp_core(30, 20), "image/bmp", (30, 20)),
        (webp(webp_lossy(300, 200)), "image/webp", (300, 200)),
        (webp(webp_lossless(300, 200)), "image/webp", (300, 200)),
        (
            webp(webp_extended(300, 200, 0x08), webp_lossy(300, 200), (b"EXIF", exif(6))),
            "image/webp",
            (200, 300),
        ),
    ],
)
def test_sizes(data: bytes, media_type: str, size: tuple[int, int]) -> None:
    header = read_header(data)
    assert (header.media_type, (header.width_px, header.height_px)) == (media_type, size)
    assert not header.is_animated


@each_case(
    "data",
    [
        gif(30, 20, (0, 0, 30, 20), (0, 0, 30, 20)),
        png(30, 20, (b"acTL", b"\x00\x00\x00\x02" + bytes(4))),
        webp(webp_extended(300, 200, 0x02)),
    ],
)
def test_frames_are_noticed(data: bytes) -> None:
    assert read_header(data).is_animated


@each_case(
    ("data", "problem"),
    [
        (b"", "no PNG"),
        (b"hello", "no PNG"),
        (b"<svg/>", "no PNG"),
        (png(0, 20), "no pixels"),
        (png(30, 20)[:20], "ends before"),
        (jpeg(300, 200)[:30], "ends before"),
        (b"\xff\xd8\xff\xd9", "has no size"),
        (b"\xff\xd8\xff\xe0\x00\x04..junk", "damaged"),
        (gif(30, 20), "holds no image"),
        (bmp(30, 20)[:20], "ends before"),
        (bmp(0, 20), "no pixels"),
        (webp(), "has no size"),
        (webp((b"VP8X", b"")), "ends before"),
    ],
)
def test_what_is_no_image(data: bytes, problem: str) -> None:
    with pytest.raises(ImageHeaderError, match=problem):
        read_header(data)


@given(st.sampled_from(WHOLE), st.integers(0, 200), st.binary(max_size=12), st.integers(0, 200))
def test_damaged_files_are_read_or_refused(
    data: bytes, position: int, put_in: bytes, end: int
) -> None:
    damaged = (data[:position] + put_in + data[position + len(put_in) :])[: len(data) - end]
    try:
        header = read_header(damaged)
    except ImageHeaderError:
        return
    assert isinstance(header, ImageHeader)
    assert header.width_px > 0
    assert header.height_px > 0


@given(
    st.sampled_from([b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"RIFFxxxxWEBP"]),
    st.binary(),
)
def test_any_bytes_are_read_or_refused(mark: bytes, rest: bytes) -> None:
    with contextlib.suppress(ImageHeaderError):
        read_header(mark + rest)
