"""The header of a GGUF file: its metadata, and where each tensor lies.

gguf.GGUFReader wraps every string of the vocabulary in numpy views, which takes seconds per 50,000
tokens; this reads the same header in a tenth of a second. Layout: ggml/docs/gguf.md, versions 2
and 3, little-endian. Imports no torch.

    magic | version | #tensors | #metadata | metadata ... | tensor infos ... | pad | tensor data
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from inference.loading.errors import BadFileError, MissingFileError

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
STRING, ARRAY = 8, 9
SCALAR_FORMATS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip

MetadataValue = bool | int | float | str | list["MetadataValue"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFHeader:
    path: Path
    metadata: Mapping[str, MetadataValue]
    tensors: Mapping[str, TensorInfo]
    data_offset: int
    """Where the metadata ends and the tensors' bytes begin."""


def read_headers(paths: Sequence[Path]) -> GGUFHeader:
    """The parts of one model as one header: the first part's metadata, everybody's tensors.
    Raises ``MissingFileError``, ``BadFileError``."""
    first, *others = (read_header(path) for path in paths)
    tensors = dict(first.tensors)
    for other in others:
        tensors.update(other.tensors)
    return replace(first, tensors=tensors)


def read_header(path: Path) -> GGUFHeader:
    """Raises ``MissingFileError``, ``BadFileError``."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return _Cursor(path, view).header()
    except FileNotFoundError:
        raise MissingFileError(f"{path} does not exist") from None
    except (struct.error, UnicodeDecodeError, ValueError, KeyError, MemoryError) as error:
        raise BadFileError(f"{path} is not a readable GGUF file: {error}") from error


class _Cursor:
    """Reads forward through the header."""

    def __init__(self, path: Path, view: mmap.mmap) -> None:
        self._path = path
        self._view = view
        self._at = 0

    def header(self) -> GGUFHeader:
        if self._view[:4] != MAGIC:
            raise BadFileError(f"{self._path} does not begin with the GGUF magic")
        self._at = 4
        version = self._scalar("I")
        if version not in (2, 3):
            raise BadFileError(f"{self._path} is GGUF version {version}; 2 and 3 are read here")
        num_tensors, num_metadata = self._scalar("Q"), self._scalar("Q")
        metadata = {self._string(): self._value(self._scalar("I")) for _ in range(num_metadata)}
        infos = [self._tensor_info() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0:
            raise BadFileError(f"{self._path} declares the alignment {alignment!r}")
        data_offset = -(-self._at // alignment) * alignment
        tensors = {info.name: self._placed(info, data_offset) for info in infos}
        return GGUFHeader(
            path=self._path, metadata=metadata, tensors=tensors, data_offset=data_offset
        )

    def _placed(self, info: TensorInfo, data_offset: int) -> TensorInfo:
        placed = replace(info, offset=data_offset + info.offset)
        if placed.offset + placed.num_bytes > len(self._view):
            raise BadFileError(
                f"{self._path} ends before its tensor {info.name}: {len(self._view)} bytes, "
                f"{placed.offset + placed.num_bytes} needed; download it again"
            )
        return placed

    def _tensor_info(self) -> TensorInfo:
        name = self._string()
        num_dimensions = self._scalar("I")
        sizes = tuple(self._scalar("Q") for _ in range(num_dimensions))
        type_number = self._scalar("I")
        return TensorInfo(
            path=self._path,
            name=name,
            shape=sizes[::-1],  # GGUF lists the fastest dimension first
            type=GGMLQuantizationType(type_number),
            offset=self._scalar("Q"),
        )

    def _value(self, kind: int) -> MetadataValue:
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            value: bool | int | float = self._scalar(SCALAR_FORMATS[kind])
            return value
        item_kind, length = self._scalar("I"), self._scalar("Q")
        if item_kind in SCALAR_FORMATS:
            layout = struct.Struct(f"<{length}{SCALAR_FORMATS[item_kind]}")
            items = list(layout.unpack_from(self._view, self._at))
            self._at += layout.size
            return items
        return [self._value(item_kind) for _ in range(length)]

    def _string(self) -> str:
        length = self._scalar("Q")
        start, self._at = self._at, self._at + length
        if self._at > len(self._view):
            raise BadFileError(f"{self._path} ends inside its metadata; download it again")
        return self._view[start : self._at].decode()

    def _scalar(self, format: str) -> int:
        layout = _LAYOUTS[format]
        (value,) = layout.unpack_from(self._view, self._at)
        self._at += layout.size
        number: int = value
        return number


_LAYOUTS = {format: struct.Struct(f"<{format}") for format in SCALAR_FORMATS.values()}
