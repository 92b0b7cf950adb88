"""Reads an image's format and size from the first bytes of its file, without decoding.

    PNG   chunks: IHDR has the size, acTL means frames, eXIf an orientation
    JPEG  segments up to the scan: SOFn has the size, APP1 an orientation
    GIF   blocks: the first image and the screen have the size, a second image means frames
    BMP   one header: it has the size, with a negative height where its rows go downwards
    WebP  chunks: VP8, VP8L or VP8X has the size, VP8X has a flag for frames, EXIF an orientation

The decoder checks the rest of the file. Pure.

Sources: RFC 2083 and its APNG extension, ITU T.81, GIF89a, RFC 9649, Exif 2.32,
BITMAPCOREHEADER and BITMAPINFOHEADER of the Windows GDI.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from inference.protocol.images import MediaType

EXIF_MARK = b"Exif\x00\x00"
ORIENTATION_TAG = 0x0112
TURNED = frozenset({5, 6, 7, 8})
START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD8)})
CORE_HEADER_BYTES = 12
"""The first BMP header, whose sides are 16 bits; all later ones begin with sides of 32."""
START_OF_SCAN, END_OF_IMAGE = 0xDA, 0xD9


class ImageHeaderError(ValueError):
    pass


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """``width_px`` and ``height_px`` as shown: the orientation is applied."""

    media_type: MediaType
    width_px: int
    height_px: int
    is_animated: bool = False


def _png(data: bytes) -> ImageHeader:
    kind, width, height = struct.unpack_from(">4sII", data, 12)
    if kind != b"IHDR":
        raise ImageHeaderError("the PNG does not begin with its size")
    orientation, is_animated = 1, False
    position = 8
    while position + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        if kind == b"acTL":
            is_animated = struct.unpack_from(">I", data, position + 8)[0] > 1
        elif kind == b"eXIf":
            orientation = _orientation(data[position + 8 : position + 8 + length])
        position += 12 + length
    return _shown("image/png", width, height, orientation, is_animated)


def _jpeg(data: bytes) -> ImageHeader:
    size, orientation = None, 1
    position = 2
    while True:
        if data[position] != 0xFF:
            raise ImageHeaderError("the JPEG is damaged before its size")
        marker = data[position + 1]
        if marker == 0xFF:  # filler
            position += 1
            continue
        if marker in WITHOUT_LENGTH:
            position += 2
            continue
        if marker in (START_OF_SCAN, END_OF_IMAGE):
            break
        (length,) = struct.unpack_from(">H", data, position + 2)
        if marker in START_OF_FRAME and size is None:
            size = struct.unpack_from(">HH", data, position + 5)
        elif marker == 0xE1 and data.startswith(EXIF_MARK, position + 4):
            orientation = _orientation(data[position + 10 : position + 2 + length])
        position += 2 + length
    if size is None:
        raise ImageHeaderError("the JPEG has no size")
    height, width = size
    return _shown("image/jpeg", width, height, orientation)


def _gif(data: bytes) -> ImageHeader:
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    position = 13 + _colours(flags)
    num_images = 0
    for left, top, wide, high in _gif_images(data, position):
        num_images += 1
        if num_images > 1:
            return ImageHeader("image/gif", width, height, is_animated=True)
        width, height = max(width, left + wide), max(height, top + high)
    if not num_images:
        raise ImageHeaderError("the GIF holds no image")
    return ImageHeader("image/gif", width, height)


def _gif_images(data: bytes, position: int) -> Iterator[tuple[int, int, int, int]]:
    while position < len(data):
        match data[position]:
            case 0x21:  # an extension
                position = _after_blocks(data, position + 2)
            case 0x2C:
                left, top, wide, high, flags = struct.unpack_from("<HHHHB", data, position + 1)
                yield left, top, wide, high
                position = _after_blocks(data, position + 11 + _colours(flags))
            case _:
                return


def _after_blocks(data: bytes, position: int) -> int:
    while position < len(data) and data[position]:
        position += 1 + data[position]
    return position + 1


def _colours(flags: int) -> int:
    return 3 * 2 ** ((flags & 7) + 1) if flags & 0x80 else 0


def _bmp(data: bytes) -> ImageHeader:
    (header_bytes,) = struct.unpack_from("<I", data, 14)
    if header_bytes == CORE_HEADER_BYTES:
        return ImageHeader("image/bmp", *struct.unpack_from("<HH", data, 18))
    width, height = struct.unpack_from("<ii", data, 18)
    return ImageHeader("image/bmp", width, abs(height))


def _webp(data: bytes) -> ImageHeader:
    size, orientation, is_animated = None, 1, False
    position = 12
    while position + 8 <= len(data):
        kind, length = struct.unpack_from("<4sI", data, position)
        start = position + 8
        if kind == b"VP8X":
            is_animated = bool(data[start] & 0x02)
            size = (_uint24(data, start + 4) + 1, _uint24(data, start + 7) + 1)
        elif kind == b"VP8 " and size is None:
            width, height = struct.unpack_from("<HH", data, start + 6)
            size = (width & 0x3FFF, height & 0x3FFF)
        elif kind == b"VP8L" and size is None:
            (bits,) = struct.unpack_from("<I", data, start + 1)
            size = ((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
        elif kind == b"EXIF":
            orientation = _orientation(data[start : start + length])
        position = start + length + length % 2
    if size is None:
        raise ImageHeaderError("the WebP has no size")
    return _shown("image/webp", *size, orientation, is_animated)


def _uint24(data: bytes, position: int) -> int:
    low, high = struct.unpack_from("<HB", data, position)
    return int(low | high << 16)


def _orientation(exif: bytes) -> int:
    """The orientation in the first directory; 1, upright, where there is none."""
    tiff = exif.removeprefix(EXIF_MARK)
    order = {b"II*\x00": "<", b"MM\x00*": ">"}.get(tiff[:4])
    if order is None:
        return 1
    try:
        (directory,) = struct.unpack_from(f"{order}I", tiff, 4)
        (num_entries,) = struct.unpack_from(f"{order}H", tiff, directory)
        for index in range(num_entries):
            entry = directory + 2 + 12 * index
            tag, kind, count, value = struct.unpack_from(f"{order}HHIH", tiff, entry)
            if (tag, kind, count) == (ORIENTATION_TAG, 3, 1):
                return int(value)
    except struct.error:
        pass  # like other readers: an unreadable entry is ignored
    return 1


def _shown(
    media_type: MediaType, width: int, height: int, orientation: int, is_animated: bool = False
) -> ImageHeader:
    if orientation in TURNED:
        width, height = height, width
    return ImageHeader(media_type, width, height, is_animated)


READERS = (
    (b"\x89PNG\r\n\x1a\n", _png),
    (b"\xff\xd8\xff", _jpeg),
    (b"GIF87a", _gif),
    (b"GIF89a", _gif),
    (b"RIFF", _webp),
    (b"BM", _bmp),
)


def read_header(data: bytes) -> ImageHeader:
    """Raises ``ImageHeaderError``."""
    for mark, reader in READERS:
        if data.startswith(mark) and (reader is not _webp or data[8:12] == b"WEBP"):
            break
    else:
        raise ImageHeaderError("the image is no PNG, JPEG, WebP, GIF or BMP")
    try:
        header = reader(data)
    except (struct.error, IndexError):
        raise ImageHeaderError("the image ends before its size") from None
    if header.width_px < 1 or header.height_px < 1:
        raise ImageHeaderError("the image has no pixels")
    return header
