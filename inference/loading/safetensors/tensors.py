"""Tensors of a safetensors model (one file or shards), memory-mapped: as the files hold them.

The library checks that tensors lie in the file, and apart; it leaves unchecked that no tensor is
named twice, and reads the last, so that is checked here.

    8 bytes: the header's length | header, JSON | tensors' bytes
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import safetensors
import torch

from inference.loading.weights.tensor_files import PlainFiles
from inference.models.weights.stored import DenseWeight, StoredWeight
from inference.protocol.load_errors import BadFileError, MissingTensorError, shape_in_words

DTYPE_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
QUANTIZED_BYTES = {"F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "I32": 4, "I64": 8}
"""Types of the tensors that ``packed_files`` makes weights of."""
INTEGER_BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "I16": 2, "I32": 4, "I64": 8}
"""Tables and masks that files for the transformers backend hold beside weights."""
CODES = "U8"
_CODES_OF_EXPERTS = re.compile(r".*\.experts\.\w+_(blocks|scales)")
"""Tensors that ``stacked_experts`` unpacks."""
LENGTH_BYTES = 8
MOST_HEADER_BYTES = 100_000_000
"""The library refuses longer ones."""


class SafetensorsFiles(PlainFiles):
    def __init__(
        self, paths: Sequence[Path], *, is_quantized: bool = False, has_integers: bool = False
    ) -> None:
        """``is_quantized``: whether codes are expected. Raises ``BadFileError``."""
        self._files: dict[str, Any] = {}
        self._dtype_bytes = dict(DTYPE_BYTES)
        if is_quantized:
            self._dtype_bytes |= QUANTIZED_BYTES
        if has_integers:
            self._dtype_bytes |= INTEGER_BYTES
        for path in paths:
            self._open(path)

    def _open(self, path: Path) -> None:
        file = open_checked(path)
        for name in file.keys():  # noqa: SIM118 -- the handle is not iterable
            if name in self._files:
                raise BadFileError(f"{path.name} and another of the files both hold {name}")
            entry = file.get_slice(name)
            dtype, shape = entry.get_dtype(), tuple(entry.get_shape())
            if 0 in shape and shape != (0,):
                raise BadFileError(f"{path.name}: {name} is {shape_in_words(shape)}")
            is_code = dtype == CODES and _CODES_OF_EXPERTS.fullmatch(name) is not None
            if dtype not in self._dtype_bytes and not is_code:
                raise BadFileError(
                    f"{path.name}: {name} is stored as {dtype}; BF16, F16 and F32 are read"
                )
            self._files[name] = file

    @property
    def names(self) -> Collection[str]:
        return self._files.keys()

    def dense(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._find(name).get_tensor(name)
        return tensor

    def stored(self, name: str) -> StoredWeight:
        return DenseWeight(weight=self.dense(name))

    def stored_rows(self, name: str, first: int, last: int) -> StoredWeight:
        shape, view = self.shape_of(name), self._find(name).get_slice(name)
        if len(shape) == 2:
            return DenseWeight(weight=view[first:last])
        index, begin = divmod(first, shape[1])
        return DenseWeight(weight=view[index, begin : begin + last - first])

    def part(self, name: str, index: int) -> torch.Tensor:
        """One entry of the first axis, as stored; nothing else is read."""
        entry: torch.Tensor = self._find(name).get_slice(name)[index]
        return entry

    def columns(self, name: str, index: int, first: int, last: int) -> torch.Tensor:
        """Columns [first, last) of one entry of the first axis."""
        found: torch.Tensor = self._find(name).get_slice(name)[index, :, first:last]
        return found

    def element_bytes(self, name: str) -> int:
        return DTYPE_BYTES[self.format_of(name)]

    def format_of(self, name: str) -> str:
        dtype: str = self._find(name).get_slice(name).get_dtype()
        return dtype

    def shape_of(self, name: str) -> tuple[int, ...]:
        return tuple(self._find(name).get_slice(name).get_shape())

    def bytes_of(self, name: str) -> int:
        return math.prod(self.shape_of(name)) * self._dtype_bytes[self.format_of(name)]

    def close(self) -> None:
        self._files.clear()

    def _find(self, name: str) -> Any:
        try:
            return self._files[name]
        except KeyError:
            raise MissingTensorError(f"the safetensors files have no tensor {name}") from None


def open_checked(path: Path) -> Any:
    """The library's handle, whose tensors are torch's. Reads the header alone. Raises
    ``BadFileError``."""
    check_names_once(path)
    try:
        return safetensors.safe_open(path, framework="pt")
    except (safetensors.SafetensorError, OSError) as error:
        raise BadFileError(f"{path} is not a readable safetensors file: {error}") from None


def check_names_once(path: Path) -> None:
    """Raises ``BadFileError``."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if length > min(MOST_HEADER_BYTES, path.stat().st_size - LENGTH_BYTES):
                raise BadFileError(f"{path} ends inside its header; download or copy it again")
            json.loads(file.read(length), object_pairs_hook=_once)
    except _TwiceError as error:
        raise BadFileError(f"{path.name} holds {error} twice") from None
    except (OSError, ValueError, RecursionError) as error:
        raise BadFileError(f"{path} is not a readable safetensors file: {error}") from None


class _TwiceError(Exception):
    """The message is the key."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        raise _TwiceError(next(key for key in keys if keys.count(key) > 1))
    return found
