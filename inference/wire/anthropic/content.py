"""The content blocks of Anthropic's dialect by role, with their ``cache_control`` marks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from inference.protocol.generation import ToolCall
from inference.protocol.images import ImageRef
from inference.wire import fields as f
from inference.wire.errors import InvalidRequestError
from inference.wire.images import FILE_REASON, address_image, base64_image
from inference.wire.parts import Called, Part, Returned, Thought, joined_text

MAX_ID_CHARS = 256
ERROR_PREFIX = "Error: "
"""Chat templates have no field for a tool result's error."""


def type_field(kind: str) -> f.Field:
    return f.required("type", f.only(kind, reason=f"only {kind}"), kind)


CACHE_CONTROL_FIELDS = f.table(
    type_field("ephemeral"),
    f.neutral("ttl", f.one_of("5m", "1h"), "5m, 1h; a prefix stays while there is room."),
    f.neutral("scope", f.text(64), "Whose cache; there is one."),
)
CACHE_CONTROL = f.neutral(
    "cache_control",
    CACHE_CONTROL_FIELDS.read,
    "Sent to upstreams of this dialect; here prefixes are cached by content, without marks.",
)


def cache_of(read: Mapping[str, Any]) -> str | None:
    """The mark's time to live, empty where it names none; ``None`` without a mark."""
    mark = read.get("cache_control")
    return None if mark is None else mark.get("ttl", "")


tool_name = f.spelled(
    re.compile(r"[a-zA-Z0-9_-]{1,128}"), "1 to 128 letters, digits, underscores and hyphens"
)


@dataclass(frozen=True, slots=True)
class ToolReference:
    """A tool's result that makes a deferred tool available. ``path`` is that of the name."""

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class Block:
    """``part`` is ``None`` for redacted thoughts. ``path`` and ``references``: of a result."""

    part: Part | Thought | Called | Returned | None
    cache: str | None = None
    path: str = ""
    references: tuple[ToolReference, ...] = ()


_id = f.text(MAX_ID_CHARS, min_chars=1)
_toolset = f.refused("toolset_name", "there are no toolsets here")
_direct = f.only({"type": "direct"}, reason="only the model calls tools")

TEXT_FIELDS = f.table(
    type_field("text"),
    f.required("text", f.text(), "A string."),
    CACHE_CONTROL,
    f.fixed("citations", [], "sources are not cited"),
)


def _text(value: Any, path: str, kinds: tuple[str, ...] = ("text",)) -> Block:
    _, read = f.read_kind(value, path, {"text": TEXT_FIELDS}, _only(kinds))
    return Block(read["text"], cache_of(read))


def text_blocks(value: Any, path: str) -> tuple[Block, ...]:
    if isinstance(value, str):
        return (Block(value),)
    if not isinstance(value, list):
        raise f.wrong_type(path, "a string or an array of blocks", value)
    return tuple(_text(block, f"{path}[{index}]") for index, block in enumerate(value))


SOURCE_FIELDS = {
    "base64": f.table(
        type_field("base64"),
        f.required("data", base64_image, "The file: a PNG, JPEG, WebP, GIF or BMP, not animated."),
        f.neutral(
            "media_type",
            f.one_of("image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp"),
            "The format is read from the file itself.",
        ),
    ),
    "url": f.table(
        type_field("url"),
        f.required("url", address_image, "Only where the operator allows its host."),
    ),
    "file": f.table(
        type_field("file"), replace(f.refused("file_id", FILE_REASON), is_required=True)
    ),
}


def _source(value: Any, path: str) -> ImageRef:
    kind, read = f.read_kind(value, path, SOURCE_FIELDS, _only(SOURCE_FIELDS))
    image: ImageRef = read["data" if kind == "base64" else "url"]
    return image


IMAGE_FIELDS = f.table(
    type_field("image"),
    f.required("source", _source, "base64, or url where the operator allows its host."),
    CACHE_CONTROL,
)

REFERENCE_FIELDS = f.table(
    type_field("tool_reference"),
    f.required("tool_name", tool_name, "Offers a deferred tool; the model reads the name."),
    CACHE_CONTROL,
)


def _result_content(value: Any, path: str) -> tuple[tuple[Part, ...], tuple[ToolReference, ...]]:
    if not isinstance(value, list):
        return (texts_of(text_blocks(value, path)),), ()
    parts: list[Part] = []
    references = []
    for index, block in enumerate(value):
        at = f"{path}[{index}]"
        match f.kind_of(block, at):
            case "tool_reference":
                name = REFERENCE_FIELDS.read(block, at)["tool_name"]
                references.append(ToolReference(name, f"{at}.tool_name"))
                parts.append(name)
            case "image":
                parts.append(IMAGE_FIELDS.read(block, at)["source"])
            case _:
                parts.append(texts_of([_text(block, at, RESULT_BLOCKS)]))
    return tuple(parts), tuple(references)


BLOCK_FIELDS = {
    "text": TEXT_FIELDS,
    "image": IMAGE_FIELDS,
    "thinking": f.table(
        type_field("thinking"),
        f.required(
            "thinking", f.text(), "What the model thought; its template decides who sees it."
        ),
        f.neutral("signature", f.text(), "Any: nothing is verified by it."),
    ),
    "redacted_thinking": f.table(
        type_field("redacted_thinking"),
        replace(
            f.neutral("data", f.text(), "Nothing this server can read; it never makes any."),
            is_required=True,
        ),
    ),
    "tool_use": f.table(
        type_field("tool_use"),
        f.required("id", _id, "What its result names."),
        f.required("name", tool_name, "The tool's."),
        f.required("input", f.json_object, "An object."),
        CACHE_CONTROL,
        f.neutral("caller", _direct, "type direct"),
        _toolset,
    ),
    "tool_result": f.table(
        type_field("tool_result"),
        f.required("tool_use_id", _id, "Of a call before it that has no result yet."),
        f.honoured(
            "content", _result_content, "A string, or text, image or tool_reference blocks."
        ),
        f.honoured("is_error", f.flag, "true: the model reads 'Error: ' before the content."),
        CACHE_CONTROL,
        _toolset,
    ),
}
USER_BLOCKS = ("text", "image", "tool_result")
RESULT_BLOCKS = ("text", "image", "tool_reference")
ASSISTANT_BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use")


def blocks(kinds: tuple[str, ...]) -> f.Check[Any]:
    tables, reason = {kind: BLOCK_FIELDS[kind] for kind in kinds}, _only(kinds)

    def check(value: Any, path: str) -> tuple[Block, ...]:
        if isinstance(value, str):
            return (Block(value),)
        if not isinstance(value, list):
            raise f.wrong_type(path, "a string or an array of blocks", value)
        if not value:
            raise InvalidRequestError(f"'{path}' must not be empty.", param=path)
        places = [(one, f"{path}[{index}]") for index, one in enumerate(value)]
        return tuple(_made(*f.read_kind(*place, tables, reason), place[1]) for place in places)

    return check


def _made(kind: str, read: Mapping[str, Any], path: str) -> Block:
    cache = cache_of(read)
    match kind:
        case "text":
            return Block(read["text"], cache)
        case "image":
            return Block(read["source"], cache)
        case "thinking":
            return Block(Thought(read["thinking"]))
        case "tool_use":
            arguments = orjson.dumps(read["input"]).decode()
            call = ToolCall(id=read["id"], name=read["name"], arguments=arguments)
            return Block(Called(call), cache)
        case "tool_result":
            parts, references = read.get("content", (("",), ()))
            parts = _as_error(parts) if read.get("is_error", False) else parts
            returned = Returned(read["tool_use_id"], parts)
            return Block(returned, cache, f"{path}.tool_use_id", references)
    return Block(None)


def texts_of(content: Iterable[Block]) -> str:
    return joined_text(block.part for block in content if isinstance(block.part, str))


def _as_error(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    first = parts[0] if parts else ""
    if isinstance(first, str):
        return (ERROR_PREFIX + first, *parts[1:])
    return (ERROR_PREFIX, *parts)


def _only(kinds: Iterable[str]) -> Callable[[str], str]:
    return lambda kind: f"'{kind}' blocks are not read here, only {', '.join(kinds)}"
