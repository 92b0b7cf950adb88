"""Reads a GGUF file's header: metadata, and where each tensor lies. Imports no torch. Layout:
ggml/docs/gguf.md, versions 2 and 3, little-endian. gguf.GGUFReader takes seconds per 50,000 tokens;
this takes a tenth of a second."""

from __future__ import annotations

import difflib
import math
import mmap
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from inference.loading.formats import GGUF_FORMATS
from inference.protocol.load_errors import BadFileError, MissingFileError, shape_in_words

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
STRING, ARRAY = 8, 9
SCALAR_FORMATS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip

MetadataValue = bool | int | float | str | list["MetadataValue"]

SPLIT_COUNT, SPLIT_NUMBER, SPLIT_TENSORS = "split.count", "split.no", "split.tensors.count"

MOST_HEADER_BYTES = 128 * 1024**2
"""The largest vocabularies take a sixth of it. Parsed values take several times their bytes."""
MOST_DIMENSIONS = 4
LEAST_PAIR_BYTES = 8 + 4 + 1
"""The shortest pair of metadata: a key's length, the kind of a value, and a value."""
LEAST_INFO_BYTES = 8 + 4 + 4 + 8
"""The shortest entry of a tensor: its name's length, number of dimensions, type and offset."""
LEAST_STRING_BYTES = 8

Item = TypeVar("Item")
ALL_TYPES = frozenset(type.value for type in GGMLQuantizationType)
READABLE_TYPES = frozenset(GGMLQuantizationType[type.name] for type in GGUF_FORMATS)
REMOVED = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    path: Path
    name: str
    shape: tuple[int, ...]
    """Row-major, as torch has it: (out_features, in_features)."""
    type: GGMLQuantizationType
    offset: int
    """From the start of the file."""

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        sizes: tuple[int, int] = GGML_QUANT_SIZES[self.type]
        block_elements, block_bytes = sizes
        return self.num_elements // block_elements * block_bytes

    def floats(self) -> npt.NDArray[np.float32]:
        return np.fromfile(self.path, np.float32, self.num_elements, offset=self.offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFHeader:
    path: Path
    metadata: Mapping[str, MetadataValue]
    tensors: Mapping[str, TensorInfo]
    data_offset: int

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture"))


def read_headers(paths: Sequence[Path]) -> GGUFHeader:
    """The metadata are the first part's. Raises ``MissingFileError``, ``BadFileError``."""
    headers = [read_header(path) for path in paths]
    check_parts(headers)
    tensors: dict[str, TensorInfo] = {}
    for header in headers:
        for name, info in header.tensors.items():
            if name in tensors:
                raise BadFileError(
                    f"{tensors[name].path.name} and {info.path.name} both hold the tensor {name}"
                )
            tensors[name] = info
    return replace(headers[0], tensors=tensors)


def check_parts(headers: Sequence[GGUFHeader]) -> None:
    """Files that state no number of parts pass as named."""
    counts = [header.metadata.get(SPLIT_COUNT) for header in headers]
    if not any(counts):
        return
    for number, (header, count) in enumerate(zip(headers, counts, strict=True)):
        name, own = header.path.name, header.metadata.get(SPLIT_NUMBER)
        if count != len(headers):
            raise BadFileError(
                f"{name} is of a model in {count} parts, and {len(headers)} are here; download the "
                "others"
            )
        if own != number:
            raise BadFileError(f"{name} states that it is part {own}, counted from 0, not {number}")
    wanted = headers[0].metadata.get(SPLIT_TENSORS)
    found = sum(len(header.tensors) for header in headers)
    if wanted not in (None, found):
        raise BadFileError(
            f"{headers[0].path.name} states {wanted} tensors in all parts, which hold {found}; "
            "download them again"
        )


def read_header(path: Path) -> GGUFHeader:
    """Raises ``MissingFileError``, ``BadFileError``."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return _Cursor(path, view).header()
    except FileNotFoundError:
        raise MissingFileError(f"{path} does not exist") from None
    except (struct.error, OverflowError, ValueError, KeyError, MemoryError) as error:
        raise BadFileError(f"{path} is not a readable GGUF file: {error}") from error


class _Cursor:
    def __init__(self, path: Path, view: mmap.mmap) -> None:
        self._path = path
        self._view = view
        self._at = 0

    def header(self) -> GGUFHeader:
        if self._view[:4] != MAGIC:
            raise BadFileError(f"{self._path} does not begin with the GGUF magic")
        self._at = 4
        version = self._scalar("I")
        if version in (2 << 24, 3 << 24):
            raise BadFileError(
                f"{self._path} is a big-endian GGUF file; little-endian ones are read here: "
                "gguf-convert-endian of the gguf package converts it"
            )
        if version not in (2, 3):
            raise BadFileError(f"{self._path} is GGUF version {version}; 2 and 3 are read here")
        num_tensors, num_metadata = self._scalar("Q"), self._scalar("Q")
        self._check_room(num_metadata, LEAST_PAIR_BYTES, "metadata values")
        metadata = self._named("metadata key", num_metadata, self._pair)
        self._check_room(num_tensors, LEAST_INFO_BYTES, "tensors")
        infos = self._named("tensor", num_tensors, self._tensor_info)
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0:
            raise BadFileError(f"{self._path} declares the alignment {alignment!r}")
        data_offset = -(-self._at // alignment) * alignment
        tensors = {name: self._placed(info, data_offset) for name, info in infos.items()}
        self._check_apart(tensors.values())
        return GGUFHeader(
            path=self._path, metadata=metadata, tensors=tensors, data_offset=data_offset
        )

    def _named(
        self, what: str, count: int, read: Callable[[], tuple[str, Item]]
    ) -> dict[str, Item]:
        found: dict[str, Item] = {}
        for _ in range(count):
            name, item = read()
            if name in found:
                raise BadFileError(f"{self._path} holds the {what} {name} twice")
            found[name] = item
        return found

    def _check_room(self, count: int, least_bytes: int, what: str) -> None:
        """Checks a declared count before anything is allocated for it."""
        room = (min(len(self._view), MOST_HEADER_BYTES) - self._at) // least_bytes
        if count > room:
            raise BadFileError(
                f"{self._path} declares {count} {what} where its header has room for "
                f"{max(0, room)}; download or copy it again"
            )

    def _placed(self, info: TensorInfo, data_offset: int) -> TensorInfo:
        placed = replace(info, offset=data_offset + info.offset)
        if placed.offset + placed.num_bytes > len(self._view):
            raise BadFileError(
                f"{self._path} ends before its tensor {info.name}: {len(self._view)} bytes, "
                f"{placed.offset + placed.num_bytes} needed; download or copy it again"
            )
        return placed

    def _check_apart(self, tensors: Iterable[TensorInfo]) -> None:
        by_offset = sorted(tensors, key=lambda info: info.offset)
        for before, after in pairwise(by_offset):
            if before.offset + before.num_bytes > after.offset:
                raise BadFileError(
                    f"{self._path}: the bytes of {before.name} and of {after.name} overlap"
                )

    def _tensor_info(self) -> tuple[str, TensorInfo]:
        name, num_dimensions = self._string(), self._scalar("I")
        if not 1 <= num_dimensions <= MOST_DIMENSIONS:
            raise BadFileError(
                f"{self._path}: {name} has {num_dimensions} dimensions; 1 to {MOST_DIMENSIONS} are "
                "read"
            )
        sizes = tuple(self._scalar("Q") for _ in range(num_dimensions))
        shape = sizes[::-1]  # GGUF lists the fastest dimension first
        type = self._type(name)
        block_elements, _ = GGML_QUANT_SIZES[type]
        if 0 in shape or shape[-1] % block_elements:
            raise BadFileError(
                f"{self._path}: {name} is {shape_in_words(shape)} in {type.name}, whose rows are "
                f"whole blocks of {block_elements}"
            )
        offset = self._scalar("Q")
        return name, TensorInfo(path=self._path, name=name, shape=shape, type=type, offset=offset)

    def _type(self, name: str) -> GGMLQuantizationType:
        number = self._scalar("I")
        if number in REMOVED:
            reason = (
                f"stored as {REMOVED[number]}, a type that GGUF no longer has; the nearest that is "
                f"read here is {nearest(REMOVED[number])}"
            )
        elif number not in ALL_TYPES:
            reason = f"stored as type {number}, and {number} is not a valid type of GGUF"
        else:
            return GGMLQuantizationType(number)
        raise BadFileError(f"{self._path}: {name} is {reason}")

    def _pair(self) -> tuple[str, MetadataValue]:
        name = self._string()
        return name, self._value(self._scalar("I"))

    def _value(self, kind: int) -> MetadataValue:
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            value: bool | int | float = self._scalar(SCALAR_FORMATS[kind])
            return value
        item_kind, length = self._scalar("I"), self._scalar("Q")
        if item_kind == STRING:
            return self._strings(length)
        if item_kind not in SCALAR_FORMATS:
            raise BadFileError(
                f"{self._path} has an array of the kind {item_kind} in its metadata; arrays of "
                "numbers and strings are read"
            )
        return self._scalars(SCALAR_FORMATS[item_kind], length)

    def _strings(self, length: int) -> list[MetadataValue]:
        """One loop without calls: vocabularies have hundreds of thousands."""
        self._check_room(length, LEAST_STRING_BYTES, "strings in an array")
        view, at, found = self._view, self._at, list[MetadataValue]()
        end, read_length = min(len(view), MOST_HEADER_BYTES), _LAYOUTS["Q"].unpack_from
        for _ in range(length):
            (num_bytes,) = read_length(view, at)
            start = at + 8
            at = start + num_bytes
            if at > end:
                self._at = start
                self._check_room(num_bytes, 1, "bytes of text")
            found.append(view[start:at].decode())
        self._at = at
        return found

    def _scalars(self, format: str, length: int) -> list[MetadataValue]:
        self._check_room(length, _LAYOUTS[format].size, "numbers in an array")
        layout = struct.Struct(f"<{length}{format}")
        items = list(layout.unpack_from(self._view, self._at))
        self._at += layout.size
        return items

    def _string(self) -> str:
        length = self._scalar("Q")
        self._check_room(length, 1, "bytes of text")
        start, self._at = self._at, self._at + length
        return self._view[start : self._at].decode()

    def _scalar(self, format: str) -> int:
        layout = _LAYOUTS[format]
        (value,) = layout.unpack_from(self._view, self._at)
        self._at += layout.size
        number: int = value
        return number


_LAYOUTS = {format: struct.Struct(f"<{format}") for format in SCALAR_FORMATS.values()}


def unreadable_reason(type: GGMLQuantizationType) -> str | None:
    if type in READABLE_TYPES:
        return None
    known = ", ".join(sorted(type.name for type in READABLE_TYPES))
    return (
        f"stored as {type.name}, which is not read here; the nearest that is read is "
        f"{nearest(type.name)}, of: {known}"
    )


def nearest(name: str) -> str:
    names = sorted(str(type.name) for type in READABLE_TYPES)
    (found,) = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
    return found
