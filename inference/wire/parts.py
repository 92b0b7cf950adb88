"""The parts of a chat's turn (texts, images, thoughts, calls, results), and images in clients'
forms: data URIs, base64, and addresses where the operator allows hosts.

    given ─▶ bounds ─▶ header ─▶ ImageFile          what it is, with its bytes
    https: ─▶ wanted ─▶ (fetched by the gateway, and parsed again) ─▶ ImageFile

A parser has no I/O, so it only records the addresses to fetch; see ``inference.gateway.images``.
Pure.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import msgspec

from inference.protocol.generation import ChatMessage, ToolCall
from inference.protocol.images import ImageRef
from inference.wire.errors import InvalidImageError, InvalidRequestError, UnsupportedParameterError
from inference.wire.fields import Check, Table, one_of, read_kind, wrong_type
from inference.wire.image_header import ImageHeaderError, read_header

PART_SEPARATOR = "\n"
"""Between parts of one kind that become one text."""


Part = str | ImageRef


def joined_text(parts: Iterable[Part]) -> str:
    return PART_SEPARATOR.join([part for part in parts if isinstance(part, str)])


def parts_with_images(parts: Iterable[Part]) -> list[Part]:
    """The parts of a ``ChatMessage``: none where there is no image, and adjacent texts are
    joined."""
    given = list(parts)
    if not any(isinstance(part, ImageRef) for part in given):
        return []
    merged: list[Part] = []
    for part in given:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] = joined_text([merged[-1], part])
        else:
            merged.append(part)
    return merged


@dataclass(frozen=True, slots=True)
class Thought:
    text: str


@dataclass(frozen=True, slots=True)
class Called:
    call: ToolCall


@dataclass(frozen=True, slots=True)
class Returned:
    call_id: str
    output: tuple[Part, ...]

    @property
    def message(self) -> ChatMessage:
        return ChatMessage(
            role="tool",
            content=joined_text(self.output),
            tool_call_id=self.call_id,
            parts=parts_with_images(self.output),
        )


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
    """Addresses are fetched, from the hosts that the operator allows."""


class ImageFile(ImageRef, frozen=True, kw_only=True):
    """An image with its bytes, while its request is in the gateway. ``path`` is its path in the
    client's body, ``None`` for a stored one."""

    data: bytes
    path: str | None

    @property
    def data_uri(self) -> str:
        return f"data:{self.media_type};base64,{base64.b64encode(self.data).decode()}"


@dataclass(slots=True)
class ImageReading:
    """The rules for images in one body, and the addresses to fetch."""

    rules: ImageRules = ImageRules()
    fetched: Mapping[str, bytes] = field(default_factory=dict)
    wanted: dict[str, str] = field(default_factory=dict)
    """Address to its first path."""
    is_stored: bool = False
    """They were accepted before: no limit applies any more."""


_reading: ContextVar[ImageReading | None] = ContextVar("how images are read", default=None)


@contextmanager
def images_read(reading: ImageReading) -> Iterator[None]:
    """Bodies parsed within the block read images by ``reading``; others by the default rules, which
    fetch nothing."""
    token = _reading.set(reading)
    try:
        yield
    finally:
        _reading.reset(token)


def image_url(value: Any, path: str) -> ImageFile:
    if not isinstance(value, str):
        raise wrong_type(path, "a string", value)
    if given := DATA_URI.match(value):
        if not given[2].lower().endswith(";base64"):
            raise InvalidImageError("a data URI must be base64", path)
        return base64_image(value[given.end() :], path)
    if ADDRESS.match(value) is None:
        raise InvalidImageError(f"'{_shown(value)}' is neither a data URI nor an address", path)
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
    """Raises ``InvalidImageError``, which names the limit that it exceeds."""
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


def _shown(value: str) -> str:
    return value if len(value) <= SHOWN_URI_CHARS else value[:SHOWN_URI_CHARS] + "…"


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


def read_parts(
    value: Any, path: str, tables: Mapping[str, Table], reason: Callable[[str], str]
) -> list[Part]:
    """A string, or parts, whose one required field holds what they are. ``reason``: why a type is
    unsupported. Raises ``ApiError``."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise wrong_type(path, "a string or an array of parts", value)
    parts: list[Part] = []
    for index, part in enumerate(value):
        kind, read = read_kind(part, f"{path}[{index}]", tables, reason)
        held = read[tables[kind].required[0]]
        parts.append(with_detail(held, read["detail"]) if "detail" in read else held)
    return parts


FILE_REASON = "files are not read as images; send the image itself, as base64"


def without_answer_start(chat: list[ChatMessage]) -> tuple[list[ChatMessage], str]:
    """Removes a last turn of the assistant, which is the start of the answer. Raises
    ``InvalidRequestError`` where it has more than text."""
    *earlier, last = chat
    if last.role != "assistant":
        return chat, ""
    if last.tool_calls or last.reasoning:
        raise InvalidRequestError(
            "The last of 'messages' is the start of the answer and may hold text only.",
            param="messages",
        )
    return earlier, last.content or ""
