"""A GGUF file taken apart, to be changed and written again, valid or not."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf

from inference.loading.gguf.header import ARRAY, SCALAR_FORMATS, STRING

UINT32, FLOAT32 = 4, 6


@dataclass(slots=True)
class Pair:
    key: str
    kind: int
    value: Any
    item_kind: int = 0
    """The kind of an array's items."""
    length: int | None = None
    """The declared length of an array or a string; ``None``: the true one."""


@dataclass(slots=True)
class Info:
    name: str
    sizes: list[int]
    """The fastest axis first."""
    type: int
    offset: int


@dataclass(slots=True)
class EditableGGUF:
    pairs: list[Pair]
    infos: list[Info]
    data: bytes
    alignment: int = 32
    num_pairs: int | None = None
    num_infos: int | None = None

    @classmethod
    def read(cls, path: Path) -> EditableGGUF:
        reader = gguf.GGUFReader(path)
        pairs = [
            Pair(key, field.types[0], field.contents(), field.types[-1])
            for key, field in reader.fields.items()
            if not key.startswith("GGUF.")
        ]
        start = reader.data_offset
        infos = [
            Info(one.name, one.shape.tolist(), int(one.tensor_type), int(one.data_offset - start))
            for one in reader.tensors
        ]
        return cls(pairs, infos, path.read_bytes()[start:])

    def pair(self, key: str) -> Pair:
        return next(pair for pair in self.pairs if pair.key == key)

    def info(self, name: str) -> Info:
        return next(info for info in self.infos if info.name == name)

    def set(self, key: str, value: Any, kind: int = UINT32) -> None:
        """Sets a value in place of the one that the file has, or as a new one."""
        item_kind = next((pair.item_kind for pair in self.pairs if pair.key == key), 0)
        self.pairs = [pair for pair in self.pairs if pair.key != key]
        self.pairs.append(Pair(key, kind, value, item_kind))

    def content(self) -> bytes:
        num_infos = len(self.infos) if self.num_infos is None else self.num_infos
        num_pairs = len(self.pairs) if self.num_pairs is None else self.num_pairs
        header = struct.pack("<4sIQQ", b"GGUF", 3, num_infos, num_pairs)
        header += b"".join(map(_pair_bytes, self.pairs))
        header += b"".join(map(_info_bytes, self.infos))
        return header + b"\0" * (-len(header) % self.alignment) + self.data

    def write(self, path: Path) -> Path:
        path.write_bytes(self.content())
        return path


def _number(format: str, value: int) -> bytes:
    size = struct.calcsize(f"<{format}")
    return (value & (256**size - 1)).to_bytes(size, "little")


def _text_bytes(text: str, length: int | None = None) -> bytes:
    encoded = text.encode(errors="surrogateescape")
    return _number("Q", len(encoded) if length is None else length) + encoded


def _pair_bytes(pair: Pair) -> bytes:
    head = _text_bytes(pair.key) + _number("I", pair.kind)
    if pair.kind != ARRAY:
        return head + _value_bytes(pair.kind, pair.value, pair.length)
    values = pair.value if isinstance(pair.value, list) else [pair.value]
    length = len(values) if pair.length is None else pair.length
    items = b"".join(_value_bytes(pair.item_kind, item) for item in values)
    return head + _number("I", pair.item_kind) + _number("Q", length) + items


def _value_bytes(kind: int, value: Any, length: int | None = None) -> bytes:
    """Encodes a value in the kind's format; what is no number is 0."""
    if kind == STRING:
        return _text_bytes(str(value), length)
    format = SCALAR_FORMATS.get(kind, "I").replace("?", "B")
    if not isinstance(value, int | float):
        value = 0
    if format in "fd":
        return struct.pack(f"<{format}", float(value))
    return _number(format, int(value) if math.isfinite(value) else 0)


def _info_bytes(info: Info) -> bytes:
    sizes = b"".join(_number("Q", size) for size in info.sizes)
    place = _number("I", info.type) + _number("Q", info.offset)
    return _text_bytes(info.name) + _number("I", len(info.sizes)) + sizes + place
