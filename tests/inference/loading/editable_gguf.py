"""A GGUF file taken apart, to be changed and written again, valid or not."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf

from inference.loading.gguf.header import ARRAY, SCALAR_FORMATS, STRING

UINT32, FLOAT32, UINT64 = 4, 6, 10


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
        infos = [
            Info(
                tensor.name,
                tensor.shape.tolist(),
                int(tensor.tensor_type),
                int(tensor.data_offset - reader.data_offset),
            )
            for tensor in reader.tensors
        ]
        return cls(pairs, infos, path.read_bytes()[reader.data_offset :])

    def pair(self, key: str) -> Pair:
        return next(pair for pair in self.pairs if pair.key == key)

    def info(self, name: str) -> Info:
        return next(info for info in self.infos if info.name == name)

    def set(self, key: str, value: Any, kind: int = UINT32) -> None:
        """Sets a value in place of the one that the file has, or as a new one."""
        self.pairs = [pair for pair in self.pairs if pair.key != key]
        self.pairs.append(Pair(key, kind, value))

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


def _text_bytes(text: str, length: int | None = None) -> bytes:
    encoded = text.encode(errors="surrogateescape")
    return struct.pack("<Q", len(encoded) if length is None else length & (2**64 - 1)) + encoded


def _pair_bytes(pair: Pair) -> bytes:
    head = _text_bytes(pair.key) + struct.pack("<I", pair.kind & (2**32 - 1))
    if pair.kind == STRING:
        return head + _text_bytes(str(pair.value), pair.length)
    if pair.kind != ARRAY:
        return head + _scalar_bytes(pair.kind, pair.value)
    values = pair.value if isinstance(pair.value, list) else [pair.value]
    length = len(values) if pair.length is None else pair.length & (2**64 - 1)
    items = (
        _text_bytes(str(item)) if pair.item_kind == STRING else _scalar_bytes(pair.item_kind, item)
        for item in values
    )
    item_kind = pair.item_kind & (2**32 - 1)
    return head + struct.pack("<IQ", item_kind, length) + b"".join(items)


def _scalar_bytes(kind: int, value: Any) -> bytes:
    """Encodes a value in the kind's format; integers wrap around, other values are 0."""
    format = SCALAR_FORMATS.get(kind, "I").replace("?", "B")
    if not isinstance(value, int | float):
        value = 0
    if format in "fd":
        return struct.pack(f"<{format}", float(value))
    if not math.isfinite(value):
        value = 0
    size = struct.calcsize(f"<{format}")
    return (int(value) & (256**size - 1)).to_bytes(size, "little")


def _info_bytes(info: Info) -> bytes:
    sizes = b"".join(struct.pack("<Q", size & (2**64 - 1)) for size in info.sizes)
    numbers = struct.pack("<IQ", info.type & (2**32 - 1), info.offset & (2**64 - 1))
    return _text_bytes(info.name) + struct.pack("<I", len(info.sizes)) + sizes + numbers
