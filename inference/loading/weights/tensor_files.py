"""The tensors of weight files of any format, by Hugging Face names; and those of safetensors files,
memory-mapped."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import safetensors
import torch

from inference.models.lazy_weights import RowReader
from inference.models.stored_weights import (
    DenseWeight,
    Fp8Weight,
    StoredWeight,
    with_tensors,
    written_out,
)
from inference.protocol.load_errors import BadFileError, MissingTensorError, shape_in_words


class FileTensor:
    """Read when asked for. Each kind overrides ``dense`` or ``stored``."""

    shape: tuple[int, ...]
    format: str
    """For people: Q4_1, BF16 …"""
    num_bytes: int
    """As stored."""
    has_fp8 = False
    """Whether it is fp8 with scales of blocks, which ``stored`` multiplies out."""

    def dense(self) -> torch.Tensor:
        """On the CPU, in the file's float dtype, or float32 where it was quantised."""
        return written_out(self.stored())

    def stored(self) -> StoredWeight:
        """A matrix on the CPU without its bias, as the file holds it."""
        return DenseWeight(weight=self.dense())

    def stored_rows(self, first: int, last: int) -> StoredWeight:
        """Rows [first, last) over all axes but the last; of a stack, within one matrix."""
        return with_tensors(self.stored(), lambda tensor: tensor[first:last])

    def reader(self) -> RowReader | None:
        """``None``: it comes whole, from ``stored``."""
        return None

    def fp8(self) -> Fp8Weight:
        raise AssertionError("has_fp8 answers first")


class MadeTensor(FileTensor):
    def __init__(
        self,
        shape: tuple[int, ...],
        format: str,
        num_bytes: int,
        read: Callable[[], torch.Tensor | StoredWeight],
    ) -> None:
        self.shape, self.format, self.num_bytes, self._read = shape, format, num_bytes, read

    def stored(self) -> StoredWeight:
        found = self._read()
        return DenseWeight(weight=found) if isinstance(found, torch.Tensor) else found


class TensorFiles(dict[str, FileTensor]):
    def __init__(
        self, tensors: Mapping[str, FileTensor], close: Callable[[], None] = lambda: None
    ) -> None:
        """``close`` unmaps the files. Names, shapes and formats stay."""
        super().__init__(tensors)
        self.close = close

    def __missing__(self, name: str) -> NoReturn:
        raise MissingTensorError(f"the weight files have no tensor for {name}")


DTYPE_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
QUANTIZED_BYTES = {"F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "I32": 4, "I64": 8}
"""Types of the tensors that ``packed_files`` makes weights of."""
INTEGER_BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "I16": 2, "I32": 4, "I64": 8}
"""Tables and masks that files for the transformers backend hold beside weights."""
ELEMENT_BYTES = DTYPE_BYTES | QUANTIZED_BYTES | INTEGER_BYTES
EXPERT_CODES = "U8"
_CODES_OF_EXPERTS = re.compile(r".*\.experts\.\w+_(blocks|scales)")


class SafeTensor(FileTensor):
    def __init__(
        self, open_file: Callable[[], Any], name: str, shape: tuple[int, ...], format: str
    ) -> None:
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
        """A slice with a step is cut from the whole entry, as the library has none."""
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
            if name in self:
                raise BadFileError(f"{path.name} and another of the files both hold {name}")
            entry = file.get_slice(name)
            dtype, shape = entry.get_dtype(), tuple(entry.get_shape())
            if 0 in shape and shape != (0,):
                raise BadFileError(f"{path.name}: {name} is {shape_in_words(shape)}")
            is_code = dtype == EXPERT_CODES and _CODES_OF_EXPERTS.fullmatch(name) is not None
            if dtype not in self._formats and not is_code:
                raise BadFileError(
                    f"{path.name}: {name} is stored as {dtype}; BF16, F16 and F32 are read"
                )
            self[name] = SafeTensor(open_file, name, shape, dtype)

    def __getitem__(self, name: str) -> SafeTensor:
        found = super().__getitem__(name)
        assert isinstance(found, SafeTensor)
        return found


def _opened(path: Path) -> Any:
    try:
        return safetensors.safe_open(path, framework="pt")
    except (safetensors.SafetensorError, OSError) as error:
        raise BadFileError(f"{path} is not a readable safetensors file: {error}") from None
