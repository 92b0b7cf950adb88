"""Tensors of a safetensors model (one file or shards), memory-mapped: as the files hold them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import safetensors
import torch

from inference.loading.weights.tensor_files import FileTensor, TensorFiles
from inference.models.stored_weights import DenseWeight, StoredWeight
from inference.protocol.load_errors import BadFileError, shape_in_words

DTYPE_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
QUANTIZED_BYTES = {"F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "I32": 4, "I64": 8}
"""Types of the tensors that ``packed_files`` makes weights of."""
INTEGER_BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "I16": 2, "I32": 4, "I64": 8}
"""Tables and masks that files for the transformers backend hold beside weights."""
ELEMENT_BYTES = DTYPE_BYTES | QUANTIZED_BYTES | INTEGER_BYTES
CODES = "U8"
_CODES_OF_EXPERTS = re.compile(r".*\.experts\.\w+_(blocks|scales)")
"""Tensors that ``weights.experts`` unpacks."""


class SafeTensor(FileTensor):
    def __init__(
        self, open_file: Callable[[], Any], name: str, shape: tuple[int, ...], format: str
    ) -> None:
        """``open_file``: the library's handle of the file that holds it."""
        self._name, self.shape, self.format = name, shape, format
        self.num_bytes = math.prod(shape) * ELEMENT_BYTES[format]
        self._open_file = open_file

    def dense(self) -> torch.Tensor:
        tensor: torch.Tensor = self._open_file().get_tensor(self._name)
        return tensor

    def stored_rows(self, first: int, last: int) -> StoredWeight:
        view = self._open_file().get_slice(self._name)
        if len(self.shape) == 2:
            return DenseWeight(weight=view[first:last])
        index, begin = divmod(first, self.shape[1])
        return DenseWeight(weight=view[index, begin : begin + last - first])

    def part(self, index: int) -> torch.Tensor:
        """One entry of the first axis, as stored; nothing else is read."""
        entry: torch.Tensor = self._open_file().get_slice(self._name)[index]
        return entry

    def columns(self, index: int, outputs: slice) -> torch.Tensor:
        """Columns of one entry of the first axis. A slice with a step is cut from the whole entry,
        as the library has none."""
        if outputs.step is not None:
            return self.part(index)[:, outputs]
        found: torch.Tensor = self._open_file().get_slice(self._name)[index, :, outputs]
        return found


class SafetensorsFiles(TensorFiles):
    def __init__(
        self, paths: Sequence[Path], *, is_quantized: bool = False, has_integers: bool = False
    ) -> None:
        """``is_quantized``: whether codes are expected. Raises ``BadFileError``."""
        self._formats = {
            *DTYPE_BYTES,
            *(QUANTIZED_BYTES if is_quantized else ()),
            *(INTEGER_BYTES if has_integers else ()),
        }
        self._open_files: dict[Path, Any] = {}
        super().__init__({}, self._open_files.clear)
        for path in paths:
            self._open(path)

    def _open(self, path: Path) -> None:
        file = self._open_files[path] = _opened(path)
        open_file = partial(self._open_files.__getitem__, path)
        for name in file.keys():  # noqa: SIM118 -- the handle is not iterable
            if name in self._tensors:
                raise BadFileError(f"{path.name} and another of the files both hold {name}")
            entry = file.get_slice(name)
            dtype, shape = entry.get_dtype(), tuple(entry.get_shape())
            if 0 in shape and shape != (0,):
                raise BadFileError(f"{path.name}: {name} is {shape_in_words(shape)}")
            is_code = dtype == CODES and _CODES_OF_EXPERTS.fullmatch(name) is not None
            if dtype not in self._formats and not is_code:
                raise BadFileError(
                    f"{path.name}: {name} is stored as {dtype}; BF16, F16 and F32 are read"
                )
            self._tensors[name] = SafeTensor(open_file, name, shape, dtype)

    def __getitem__(self, name: str) -> SafeTensor:
        found = super().__getitem__(name)
        assert isinstance(found, SafeTensor)
        return found


def _opened(path: Path) -> Any:
    """The library's handle, whose tensors are torch's. Reads the header alone."""
    try:
        return safetensors.safe_open(path, framework="pt")
    except (safetensors.SafetensorError, OSError) as error:
        raise BadFileError(f"{path} is not a readable safetensors file: {error}") from None
