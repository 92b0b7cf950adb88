"""Formats and sizes from the first bytes of image files."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.wire.common.image_header import ImageHeader, ImageHeaderError, read_header
from tests.cases import each_case
from tests.inference.image_files import (
    bmp,
    bmp_core,
    exif,
    gif,
    jpeg,
    png,
    webp,
    webp_extended,
    webp_lossless,
    webp_lossy,
)

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
