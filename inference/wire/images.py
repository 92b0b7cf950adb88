"""Images in clients' forms: data URIs, base64, and addresses where the operator allows hosts.

    given ─▶ bounds ─▶ header ─▶ ImageFile          what it is, with its bytes
    https: ─▶ wanted ─▶ (fetched by the gateway, and parsed again) ─▶ ImageFile

An image's format and size are read from the first bytes of its file, without decoding:

    PNG   chunks: IHDR has the size, acTL means frames, eXIf an orientation
    JPEG  segments up to the scan: SOFn has the size, APP1 an orientation
    GIF   blocks: the first image and the screen have the size, a second image means frames
    BMP   one header: it has the size, with a negative height where its rows go downwards
    WebP  chunks: VP8, VP8L or VP8X has the size, VP8X has a flag for frames, EXIF an orientation

Sources: RFC 2083 and its APNG extension, ITU T.81, GIF89a, RFC 9649, Exif 2.32,
BITMAPCOREHEADER and BITMAPINFOHEADER of the Windows GDI.
"""

from __future__ import annotations

import base64
import hashlib
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import msgspec

from inference.protocol.images import ImageRef, MediaType
from inference.wire.errors import InvalidImageError, UnsupportedParameterError
from inference.wire.fields import Check, one_of, shown, wrong_type

EXIF_MARK = b"Exif\x00\x00"
ORIENTATION_TAG = 0x0112
TURNED = frozenset({5, 6, 7, 8})
START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD8)})
CORE_HEADER_BYTES = 12
"""The first BMP header has sides of 16 bits, all later ones of 32."""
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


MIB = 1024 * 1024
DATA_URI = re.compile(r"data:([^,;]*)((?:;[^,;]*)*),", re.IGNORECASE)
ADDRESS = re.compile(r"https?://", re.IGNORECASE)
WHITESPACE = re.compile(r"\s+")
SHOWN_URI_CHARS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRules:
    max_bytes: int = 20 * MIB
    max_pixels: int = 50_000_000
    max_images: int = 100
    max_total_bytes: int = 64 * MIB
    fetches: bool = False
    """Only from the hosts that the operator allows."""


class ImageFile(ImageRef, frozen=True, kw_only=True):
    """``path`` is its path in the client's body; ``None`` for a stored image."""

    data: bytes
    path: str | None

    @property
    def data_uri(self) -> str:
        return f"data:{self.media_type};base64,{base64.b64encode(self.data).decode()}"


@dataclass(slots=True)
class ImageReading:
    rules: ImageRules = ImageRules()
    fetched: Mapping[str, bytes] = field(default_factory=dict)
    wanted: dict[str, str] = field(default_factory=dict)
    """The path of each address."""
    is_stored: bool = False
    """Accepted before: no limit applies any more."""


_reading: ContextVar[ImageReading | None] = ContextVar("how images are read", default=None)


@contextmanager
def images_read(reading: ImageReading) -> Iterator[None]:
    """Outside the block the default rules hold, which fetch nothing."""
    token = _reading.set(reading)
    try:
        yield
    finally:
        _reading.reset(token)


def image_url(value: Any, path: str) -> ImageFile:
    if not isinstance(value, str):
        raise wrong_type(path, "a string", value)
    if found := DATA_URI.match(value):
        if not found[2].lower().endswith(";base64"):
            raise InvalidImageError("a data URI must be base64", path)
        return base64_image(value[found.end() :], path)
    if ADDRESS.match(value) is None:
        raise InvalidImageError(
            f"'{shown(value, SHOWN_URI_CHARS)}' is neither a data URI nor an address", path
        )
    return address_image(value, path)


def address_image(value: Any, path: str) -> ImageFile:
    reading = _reading.get() or ImageReading()
    if not isinstance(value, str):
        raise wrong_type(path, "a string", value)
    if not reading.rules.fetches:
        raise UnsupportedParameterError(
            path, "images are not fetched from addresses here; send the image itself, as base64"
        )
    data = reading.fetched.get(value)
    if data is None:
        reading.wanted.setdefault(value, path)
        return _NOT_HERE
    return image_file(data, path)


def base64_image(value: Any, path: str) -> ImageFile:
    if not isinstance(value, str):
        raise wrong_type(path, "a string", value)
    reading = _reading.get() or ImageReading()
    _check_size(3 * (len(value) // 4) - value[-2:].count("="), reading, path)
    try:
        data = base64.b64decode(value, validate=True)
    except ValueError:
        data = _decoded_with_spaces(value, path)
    return image_file(data, path)


def _decoded_with_spaces(value: str, path: str) -> bytes:
    try:
        return base64.b64decode(WHITESPACE.sub("", value), validate=True)
    except ValueError:
        raise InvalidImageError("the image is not base64", path) from None


def image_file(data: bytes, path: str) -> ImageFile:
    reading = _reading.get() or ImageReading()
    _check_size(len(data), reading, path)
    try:
        header = read_header(data)
    except ImageHeaderError as error:
        raise InvalidImageError(str(error), path) from None
    if header.is_animated:
        raise InvalidImageError("the image is animated; send the one frame that is meant", path)
    num_pixels = header.width_px * header.height_px
    if num_pixels > reading.rules.max_pixels and not reading.is_stored:
        raise InvalidImageError(
            f"the image has {num_pixels:,} pixels ({header.width_px}x{header.height_px}); at most "
            f"{reading.rules.max_pixels:,} are read",
            path,
        )
    return ImageFile(
        digest=hashlib.sha256(data).hexdigest(),
        media_type=header.media_type,
        width_px=header.width_px,
        height_px=header.height_px,
        num_bytes=len(data),
        data=data,
        path=None if reading.is_stored else path,
    )


def _check_size(num_bytes: int, reading: ImageReading, path: str) -> None:
    if num_bytes > reading.rules.max_bytes and not reading.is_stored:
        raise InvalidImageError(
            f"the image has {num_bytes:,} bytes; at most {reading.rules.max_bytes:,} are read", path
        )


_NOT_HERE = ImageFile(
    digest="", media_type="image/png", width_px=1, height_px=1, num_bytes=0, data=b"", path=None
)
"""Replaces an image while the others of its body are fetched."""

LOW_DETAIL = "low"
detail: Check[Any] = one_of("auto", "high", LOW_DETAIL)
DETAIL_NOTE = (
    "auto or high: as large as the model reads images; low: reduced to 512x512 pixels at most."
)


def with_detail(image: ImageFile, given: str | None) -> ImageFile:
    return msgspec.structs.replace(image, is_low_detail=given == LOW_DETAIL)


FILE_REASON = "files are not read as images; send the image itself, as base64"
