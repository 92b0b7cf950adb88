"""The small language in which a dialect declares its fields, and the reader that applies it.

A dialect is one table of ``Field``: every name of its specification, each either honoured, accepted
only with values that change nothing (neutral), or refused by name. Other names are refused too,
unless the operator wants them ignored. ``null`` means the same as leaving a field out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import orjson

from inference.wire.errors import (
    InvalidJsonError,
    InvalidRequestError,
    InvalidTypeError,
    MissingParameterError,
    TooManyValuesError,
    UnsupportedParameterError,
)
from inference.wire.unknown_fields import is_left_out, near_name

T = TypeVar("T")
Check = Callable[[Any, str], T]
"""(JSON value, path) to the parsed value; raises an ``ApiError`` that names the path."""

MAX_OBJECT_DEPTH = 32
MAX_SCHEMA_DEPTH = 96
MAX_TOKEN_ID = 2**31 - 1
MAX_MODEL_NAME_CHARS = 256
MAX_SHOWN_NAME_CHARS = 64
MAX_SHOWN_DIGITS = 18


class Support(StrEnum):
    HONOURED = "honoured"
    NEUTRAL = "neutral"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    support: Support
    check: Check[Any]
    note: str
    is_required: bool = False


def honoured(name: str, check: Check[Any], note: str) -> Field:
    return Field(name, Support.HONOURED, check, note)


def required(name: str, check: Check[Any], note: str) -> Field:
    return Field(name, Support.HONOURED, check, note, is_required=True)


def neutral(name: str, check: Check[Any], note: str) -> Field:
    return Field(name, Support.NEUTRAL, check, note)


def fixed(name: str, value: Any, reason: str) -> Field:
    """JSON has one kind of number: 1 and 1.0 are the same."""
    same = (value, float(value)) if type(value) is int else (value,)
    note = value if isinstance(value, str) and value else orjson.dumps(value).decode()
    return neutral(name, only(*same, reason=reason), note)


def refused(name: str, reason: str) -> Field:
    def check(_value: Any, path: str) -> Any:
        raise UnsupportedParameterError(path, reason)

    return Field(name, Support.REFUSED, check, reason)


class Table(dict[str, Field]):
    __slots__ = ("checks", "required")

    def __init__(self, *fields: Field) -> None:
        super().__init__({field.name: field for field in fields})
        assert len(self) == len(fields), "a field is declared twice"
        self.checks = {field.name: field.check for field in fields}
        self.required = tuple(field.name for field in fields if field.is_required)

    def read(self, value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise wrong_type(path, "an object", value)
        return read_fields(value, self, path=f"{path}.")


table = Table


def read_json_object(body: bytes, *, bounds_values: bool = True) -> dict[str, Any]:
    """Raises ``InvalidJsonError`` and ``TooManyValuesError``. Of duplicate keys the last counts."""
    if bounds_values:
        check_num_values(body)
    value = read_json_value(body)
    if not isinstance(value, dict):
        raise InvalidTypeError(f"The body must be a JSON object, not {_kind(value)}.")
    return value


def read_json_value(text: bytes | memoryview) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidJsonError(f"The body is not valid JSON: {error.msg}.") from None


def read_body(body: bytes, fields: Table) -> dict[str, Any]:
    return read_fields(read_json_object(body), fields)


def read_fields(value: Mapping[str, Any], fields: Table, *, path: str = "") -> dict[str, Any]:
    read = {}
    for name, given in value.items():
        if given is None:
            continue
        check = fields.checks.get(name)
        if check is None:
            if is_left_out(path + name):
                continue
            taken = [one.name for one in fields.values() if one.support is not Support.REFUSED]
            raise unknown_field(name, taken, path)
        read[name] = check(given, path + name)
    for name in fields.required:
        if name not in read:
            raise MissingParameterError(path + name)
    return read


def unknown_field(name: str, known: Iterable[str], path: str = "") -> UnsupportedParameterError:
    near = near_name(name, known)
    help_ = "" if near is None else f"; did you mean '{path}{near}'?"
    return UnsupportedParameterError(path + shown(name), f"it is not known to this server{help_}")


def shown(name: str, most: int = MAX_SHOWN_NAME_CHARS) -> str:
    return name if len(name) <= most else name[:most] + "…"


def number(minimum: float, maximum: float) -> Check[float]:
    def check(value: Any, path: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong_type(path, "a number", value)
        if not minimum <= value <= maximum:
            raise InvalidRequestError(
                f"'{path}' must be from {minimum:g} up to {maximum:g}; it is {value}.", param=path
            )
        return float(value)

    return check


def integer(minimum: int, maximum: int) -> Check[int]:
    """3.0 is 3. orjson reads integers beyond 64 bits as floats, and rounds some to -2⁶³."""

    def check(value: Any, path: str) -> int:
        may_be_rounded = False
        if isinstance(value, float) and value.is_integer():
            value = int(value)
            may_be_rounded = value == -(2**63)
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong_type(path, "an integer", value)
        if may_be_rounded or not minimum <= value <= maximum:
            raise InvalidRequestError(
                f"'{path}' must be from {minimum} up to {maximum}; it is {_short(value)}.",
                param=path,
            )
        return value

    return check


def _short(value: int) -> str:
    return str(value) if abs(value) < 10**MAX_SHOWN_DIGITS else f"{float(value):.3g}"


def flag(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise wrong_type(path, "true or false", value)
    return value


def text(max_chars: int | None = None, *, min_chars: int = 0) -> Check[str]:
    def check(value: Any, path: str) -> str:
        if not isinstance(value, str):
            raise wrong_type(path, "a string", value)
        if len(value) < min_chars:
            raise InvalidRequestError(f"'{path}' must not be empty.", param=path)
        if max_chars is not None and len(value) > max_chars:
            raise InvalidRequestError(
                f"'{path}' may have {max_chars} characters; it has {len(value)}.", param=path
            )
        return value

    return check


model_name = text(MAX_MODEL_NAME_CHARS, min_chars=1)


def spelled(pattern: re.Pattern[str], wanted: str) -> Check[str]:

    def check(value: Any, path: str) -> str:
        if not isinstance(value, str):
            raise wrong_type(path, "a string", value)
        if pattern.fullmatch(value) is None:
            raise InvalidRequestError(f"'{path}' must have {wanted}.", param=path)
        return value

    return check


def array(
    check_item: Check[T], max_items: int | None = None, *, min_items: int = 0
) -> Check[list[T]]:
    def check(value: Any, path: str) -> list[T]:
        if not isinstance(value, list):
            raise wrong_type(path, "an array", value)
        if len(value) < min_items:
            raise InvalidRequestError(f"'{path}' must not be empty.", param=path)
        if max_items is not None and len(value) > max_items:
            raise InvalidRequestError(
                f"'{path}' may have {max_items} items; it has {len(value)}.", param=path
            )
        return [check_item(item, f"{path}[{index}]") for index, item in enumerate(value)]

    return check


def only(*accepted: Any, reason: str) -> Check[Any]:

    def check(value: Any, path: str) -> Any:
        if any(type(value) is type(one) and value == one for one in accepted):
            return value
        raise UnsupportedParameterError(path, reason)

    return check


def one_of(*names: str) -> Check[str]:
    def check(value: Any, path: str) -> str:
        if not isinstance(value, str):
            raise wrong_type(path, "a string", value)
        if value not in names:
            raise InvalidRequestError(f"'{path}' must be one of {', '.join(names)}.", param=path)
        return value

    return check


def kind_of(value: Any, path: str) -> str:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    kind = value.get("type")
    if kind is None:
        raise MissingParameterError(f"{path}.type")
    if not isinstance(kind, str):
        raise wrong_type(f"{path}.type", "a string", kind)
    return kind


def read_kind(
    value: Any, path: str, tables: Mapping[str, Table], reason: Callable[[str], str]
) -> tuple[str, dict[str, Any]]:
    kind = kind_of(value, path)
    if kind not in tables:
        raise UnsupportedParameterError(f"{path}.type", reason(shown(kind)))
    return kind, read_fields(value, tables[kind], path=f"{path}.")


def json_object(value: Any, path: str) -> dict[str, Any]:
    return _nested_object(value, path, MAX_OBJECT_DEPTH)


def json_schema(value: Any, path: str) -> dict[str, Any]:
    """The neuron, which compiles it, checks whether it is a schema."""
    return _nested_object(value, path, MAX_SCHEMA_DEPTH)


def _nested_object(value: Any, path: str, max_depth: int) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    level: list[Any] = [value]
    for _ in range(max_depth):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return value
    raise InvalidRequestError(f"'{path}' is nested deeper than {max_depth} levels.", param=path)


def wrong_type(path: str, wanted: str, value: Any) -> InvalidTypeError:
    return InvalidTypeError(f"'{path}' must be {wanted}, not {_kind(value)}.", param=path)


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _kind(value: Any) -> str:
    names: dict[type, str] = {
        type(None): "null",
        bool: "a boolean",
        int: "an integer",
        float: "a number",
        str: "a string",
        list: "an array",
        dict: "an object",
    }
    return names[type(value)]


MAX_VALUES = 100_000
"""Strings (keys too), objects and lists of a body: some 25,000 messages, decoded within 10 ms."""
PIECE_BYTES = 64 * 1024


def check_num_values(body: bytes) -> None:
    """Bounds the strings, objects and lists in a body before it is decoded. Decoding holds the
    interpreter's lock: 30 MB of short messages would stop other streams for a sixth of a second.
    Numbers are not bounded: prompts of token ids have millions. Raises ``TooManyValuesError``."""
    if len(body) <= MAX_VALUES:
        return
    num_quotes = num_containers = 0
    for piece in _pieces(body):
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b"".join(parts[num_quotes % 2 :: 2])
        num_quotes += len(parts) - 1
        num_containers += outside.count(b"[") + outside.count(b"{")
        if num_quotes > 2 * MAX_VALUES or num_containers > MAX_VALUES:
            raise TooManyValuesError(MAX_VALUES, MAX_VALUES // 4)


def _pieces(body: bytes) -> Iterator[bytes]:
    """No piece ends behind an odd number of backslashes, in the middle of an escape."""
    start = 0
    while start < len(body):
        piece = body[start : start + PIECE_BYTES]
        num_backslashes = len(piece) - len(piece.rstrip(b"\\"))
        if num_backslashes % 2 and len(piece) > 1:
            piece = piece[:-1]
        start += len(piece)
        yield piece
