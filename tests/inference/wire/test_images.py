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
from inference.wire.errors import ApiError, InvalidImageError, UnsupportedParameterError
from inference.wire.images import (
    ImageFile,
    ImageHeader,
    ImageHeaderError,
    ImageReading,
    ImageRules,
    base64_image,
    image_url,
    images_read,
    read_header,
)
from inference.wire.openai import chat as openai_chat
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
    """Whatever its URI declares, and where its base64 is broken into lines."""
    image = image_url(data_uri(CAT, "image/jpeg"), "x")
    assert image.digest == hashlib.sha256(CAT).hexdigest()
    assert (image.media_type, image.width_px, image.height_px) == ("image/png", 30, 20)
    assert (image.num_bytes, image.data, image.path) == (len(CAT), CAT, "x")
    text = base64_of(CAT)
    for uri in (image.data_uri, f"DATA:;BASE64,{text}", f"data:image/png;name=a;base64,{text}"):
        assert image_url(uri, "x") == image
    assert base64_image(f"{text[:20]}\r\n{text[20:]}\n", "x") == image
    for wrong in (7, "data:,x", "ftp://a", "data:;base64,?", "data:;base64,aGVsbG8="):
        with pytest.raises(ApiError) as refused:
            image_url(wrong, "messages[0]")
        assert refused.value.param == "messages[0]"


def test_the_bound_is_named() -> None:
    uri = data_uri(CAT)
    for rules, problem in (
        (ImageRules(max_bytes=len(CAT) - 1), f"{len(CAT)} bytes; at most {len(CAT) - 1}"),
        (ImageRules(max_bytes=10), "at most 10 are read"),
        (ImageRules(max_pixels=599), r"600 pixels \(30x20\); at most 599"),
    ):
        with images_read(ImageReading(rules=rules)):
            with pytest.raises(InvalidImageError, match=problem):
                image_url(uri, "x")
        with images_read(ImageReading(rules=rules, is_stored=True)):
            assert image_url(uri, "x").path is None, "it was accepted before"
    with images_read(ImageReading(rules=ImageRules(max_bytes=len(CAT), max_pixels=600))):
        assert image_url(uri, "x").path == "x"


def test_addresses_are_wanted_then_read_within_the_bounds() -> None:
    address = "https://example.org/a.png"
    body = _chat(address, data_uri(png(1, 1)), address)
    rules = ImageRules(fetches=True)
    with images_read(reading := ImageReading(rules=rules)):
        openai_chat.parse(body)
    assert reading.wanted == {address: "messages[0].content[0].image_url.url"}
    with images_read(ImageReading(rules=rules, fetched={address: CAT})):
        first, second, third = _images(openai_chat.parse(body))
    assert (first.data, second.width_px, third.data) == (CAT, 1, CAT)
    small = ImageRules(fetches=True, max_pixels=10)
    with images_read(ImageReading(rules=small, fetched={address: CAT})):
        with pytest.raises(InvalidImageError):
            openai_chat.parse(body)
    with pytest.raises(UnsupportedParameterError, match="not fetched from addresses"):
        openai_chat.parse(body)


WHOLE = [
    png(30, 20),
    jpeg(300, 200, exif=exif(6)),
    gif(30, 20, (0, 0, 30, 20)),
    bmp(30, 20),
    webp(webp_extended(300, 200), webp_lossy(300, 200)),
]


TURNED_WEBP = webp_extended(300, 200, 0x08), webp_lossy(300, 200), (b"EXIF", exif(6))
LARGE, TURNED = (300, 200), (200, 300)


@each_case(
    ("kind", "data", "size"),
    [
        ("png", png(300, 200), LARGE),
        ("png", png(300, 200, (b"eXIf", exif(6))), TURNED),
        ("png", png(300, 200, (b"acTL", b"\x00\x00\x00\x01" + bytes(4))), LARGE),
        ("jpeg", jpeg(300, 200, frame=0xC2), LARGE),
        ("jpeg", jpeg(300, 200, exif=exif(3)), LARGE),
        ("jpeg", jpeg(300, 200, exif=exif(5, ">")), TURNED),
        ("jpeg", jpeg(300, 200, exif=exif(8)), TURNED),
        ("jpeg", jpeg(300, 200, exif=b"II*\x00\xff\xff\xff\xff"), LARGE),
        ("gif", gif(300, 200, (0, 0, 300, 200)), LARGE),
        ("gif", gif(30, 20, (10, 5, 30, 20)), (40, 25)),
        ("bmp", bmp(300, 200), LARGE),
        ("bmp", bmp(300, -200), LARGE),
        ("bmp", bmp_core(300, 200), LARGE),
        ("webp", webp(webp_lossy(300, 200)), LARGE),
        ("webp", webp(webp_lossless(300, 200)), LARGE),
        ("webp", webp(*TURNED_WEBP), TURNED),
        ("png", png(300, 200, (b"acTL", b"\x00\x00\x00\x02" + bytes(4))), (*LARGE, True)),
        ("gif", gif(300, 200, *[(0, 0, 300, 200)] * 2), (*LARGE, True)),
        ("webp", webp(webp_extended(300, 200, 0x02)), (*LARGE, True)),
    ],
)
def test_sizes_and_frames(kind: str, data: bytes, size: Any) -> None:
    assert read_header(data) == ImageHeader(f"image/{kind}", *size)  # type: ignore[arg-type]


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
def test_damaged_files_are_read_or_refused(data: bytes, at: int, put_in: bytes, end: int) -> None:
    damaged = (data[:at] + put_in + data[at + len(put_in) :])[: len(data) - end]
    for some in (damaged, data[:12] + put_in):
        with contextlib.suppress(ImageHeaderError):
            header = read_header(some)
            assert header.width_px > 0 and header.height_px > 0
