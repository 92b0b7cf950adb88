"""``TensorFiles`` over safetensors whose matrices are quantised: each under its plain name.

    file                                            comes out as
    X.qweight, X.qzeros, X.scales, X.g_idx          X.weight, INT4 or INT8      GPTQ, AWQ
    X.weight_packed, X.weight_scale, ...            X.weight, INT4 or INT8      compressed-tensors
    X.weight as int8, X.weight_scale                X.weight, INT8              compressed-tensors
    X.weight as fp8, X.weight_scale_inv or _scale   X.weight, dense bfloat16

Codes of 4 and 8 bits stay what they are. Of fp8 only the kernel for experts takes a scale for each
block: other weights of fp8 are multiplied out, and may be quantised on their way in as dense ones
are. Scales of activations and of keys and values are not used: those stay in the model's own dtype.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

import torch

from inference.loading.formats import FP8_FILES, INT4, INT8
from inference.loading.weights import packed_matrices as matrices
from inference.loading.weights.tensor_files import (
    DTYPE_BYTES,
    FileTensor,
    SafeTensor,
    SafetensorsFiles,
    TensorFiles,
)
from inference.models.families.quantization import Quantization
from inference.models.stored_weights import (
    GROUP_FEATURES,
    DenseWeight,
    Fp8Weight,
    StoredWeight,
    with_tensors,
)
from inference.protocol.load_errors import (
    BadFileError,
    WrongShapeError,
    shape_in_words,
)

CODES = (".qweight", ".weight_packed")
BESIDE = (
    *(".qzeros", ".scales", ".g_idx", ".weight_scale", ".weight_scale_inv", ".weight_zero_point"),
    *(".weight_shape", ".weight_g_idx", ".input_scale", ".activation_scale", ".input_zero_point"),
    *(".input_global_scale", ".k_scale", ".v_scale", ".q_scale", ".output_scale"),
)
"""Suffixes of tensors that belong to a matrix or to its input."""
SCALES = ("_scale_inv", "_scale")
SCALE_FORMATS = frozenset({*DTYPE_BYTES, "F8_E8M0"})
WORD_BITS = 32
FLOATS, WORDS, INDICES = frozenset(DTYPE_BYTES), frozenset({"I32"}), frozenset({"I32", "I64"})
INTEGERS = "I8"
Shape = tuple[int, ...]


class PackedFiles(TensorFiles):
    def __init__(self, files: SafetensorsFiles, quantization: Quantization) -> None:
        """Raises ``BadFileError``."""
        tensors: dict[str, FileTensor] = {}
        for name in files:
            ending = name[name.rfind(".") :]
            if ending in CODES:
                module = name.removesuffix(ending)
                tensors[f"{module}.weight"] = CodedMatrix(files, module, quantization)
            elif scale := _scale_of(files, name):
                check_scaled(files, name, scale, quantization.block)
                tensors[name] = ScaledMatrix(files[name], files[scale], quantization.block)
            elif not name.endswith(BESIDE + SCALES):
                tensors[name] = files[name]
        super().__init__(tensors, files.close)


def _scale_of(files: SafetensorsFiles, name: str) -> str | None:
    if files[name].format not in (FP8_FILES, INTEGERS):
        return None
    found = next((name + end for end in SCALES if name + end in files), None)
    if found is None:
        raise BadFileError(f"{name} is quantised and has no scale")
    if (format := files[found].format) not in SCALE_FORMATS:
        raise BadFileError(f"{found} is stored as {format}, which is not read here")
    return found


class ScaledMatrix(FileTensor):
    def __init__(self, weight: SafeTensor, scales: SafeTensor, block: tuple[int, int]) -> None:
        self._weight, self._scales, self._block = weight, scales, block
        self.shape, self.num_bytes = weight.shape, weight.num_bytes + scales.num_bytes
        self.format = FP8_FILES if weight.format == FP8_FILES else INT8
        rows, columns = block
        blocks = -(-weight.shape[0] // rows), -(-weight.shape[-1] // columns)
        is_matrix_of_blocks = len(weight.shape) == 2 and scales.shape == blocks
        # The blocks' inputs have to be whole groups of ours.
        self.has_fp8 = (
            self.format == FP8_FILES and is_matrix_of_blocks and columns % GROUP_FEATURES == 0
        )

    def stored(self) -> StoredWeight:
        return self._multiplied(self._weight.dense(), self._scales.dense())

    def stored_rows(self, first: int, last: int) -> StoredWeight:
        if len(self.shape) == 2:
            return super().stored_rows(first, last)
        index, begin = divmod(first, self.shape[1])
        found = self._multiplied(self._weight.part(index), self._scales.part(index))
        return with_tensors(found, lambda tensor: tensor[begin : begin + last - first])

    def fp8(self) -> Fp8Weight:
        return Fp8Weight(
            codes=self._weight.dense(), scales=self._scales.dense(), block_shape=self._block
        )

    def _multiplied(self, weight: torch.Tensor, scales: torch.Tensor) -> StoredWeight:
        if weight.dtype == torch.int8:
            return matrices.eight_bit(weight, scales)
        return DenseWeight(weight=matrices.scaled(weight, scales, self._block))


class CodedMatrix(FileTensor):
    def __init__(self, files: SafetensorsFiles, module: str, quantization: Quantization) -> None:
        """Raises ``BadFileError``."""
        self._files, self._module, self._quantization = files, module, quantization
        self._is_packed = f"{module}.weight_packed" in files
        self._is_awq = not self._is_packed and quantization.method == "awq"
        held = [f"{module}{end}" for end in CODES + BESIDE if f"{module}{end}" in files]
        self.num_bytes = sum(files[name].num_bytes for name in held)
        if self._is_packed:
            self._names = ("weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx")
            self.shape = tuple(files[f"{module}.weight_shape"].dense().tolist())
            self._bits = check_packed(files, module, self.shape)
        else:
            self._names = ("qweight", "scales", "qzeros", "g_idx")
            self.shape = check_words(files, module, quantization)
            self._bits = quantization.bits

    @property
    def format(self) -> str:  # type: ignore[override]
        """As it is kept: codes whose groups do not follow each other are multiplied out."""
        if self._groups is not None:
            return "BF16"
        return INT4 if self._bits == 4 else INT8

    def stored(self) -> StoredWeight:
        words, scales, zeros = (self._read(name) for name in self._names[:3])
        assert words is not None and scales is not None, "checked"
        if self._is_packed:
            codes = matrices.from_packed(words, zeros, scales, self.shape)
        elif self._is_awq:
            assert zeros is not None, "checked"
            codes = matrices.from_awq(words, zeros, scales)
        else:
            less_one = self._quantization.zeros_less_one
            codes = matrices.from_gptq(words, zeros, scales, self._bits, zeros_less_one=less_one)
        return matrices.stored(codes, self._groups)

    @cached_property
    def _groups(self) -> torch.Tensor | None:
        """The group of each input feature; ``None`` where equal groups follow each other."""
        groups = self._read(self._names[3])
        if groups is None or bool((groups < 0).any()):
            return None
        scales = self._files[f"{self._module}.{self._names[1]}"].shape
        num_groups = scales[1 if self._is_packed else 0]
        if int(groups.max()) >= num_groups:
            raise BadFileError(
                f"{self._module}.{self._names[3]} names the group {int(groups.max())} of "
                f"{num_groups}"
            )
        is_even = len(groups) % num_groups == 0
        return None if is_even and bool((groups.diff() >= 0).all()) else groups

    def _read(self, kind: str) -> torch.Tensor | None:
        name = f"{self._module}.{kind}"
        return self._files[name].dense() if name in self._files else None


def check_words(files: SafetensorsFiles, module: str, quantization: Quantization) -> Shape:
    """AWQ and GPTQ: returns the matrix's shape."""
    per_word = WORD_BITS // quantization.bits
    first, second = _found(files, f"{module}.qweight", WORDS, (None, None))
    is_awq = quantization.method == "awq"
    in_features, out_features = (first, second * per_word) if is_awq else (first * per_word, second)
    groups, _ = _found(files, f"{module}.scales", FLOATS, (None, out_features))
    if f"{module}.g_idx" in files:
        _found(files, f"{module}.g_idx", INDICES, (in_features,))
    else:
        _check_groups(f"{module}.scales", groups, in_features)
    if is_awq or f"{module}.qzeros" in files:
        _found(files, f"{module}.qzeros", WORDS, (groups, -(-out_features // per_word)))
    return out_features, in_features


def check_packed(files: SafetensorsFiles, module: str, shape: Shape) -> int:
    """compressed-tensors: returns the bits of a code."""
    rows, words = _found(files, f"{module}.weight_packed", WORDS, (None, None))
    if len(shape) != 2 or min(shape) < 1 or rows != shape[0]:
        raise BadFileError(
            f"{module}.weight_shape is {shape_in_words(shape)}, and {module}.weight_packed has "
            f"{rows} rows"
        )
    columns = shape[1]
    bits = next((bits for bits in (4, 8) if words == -(-columns * bits // WORD_BITS)), None)
    if bits is None:
        raise BadFileError(
            f"{module}.weight_packed has {words} words a row, and {columns} codes of 4 or 8 bits "
            "take another number"
        )
    scales, indices, zeros = (
        f"{module}.{name}" for name in ("weight_scale", "weight_g_idx", "weight_zero_point")
    )
    is_matrix = len(files[scales].shape) == 2
    groups = [*_found(files, scales, FLOATS, (rows, None) if is_matrix else (rows,)), 1][1]
    if indices in files:
        _found(files, indices, INDICES, (columns,))
    else:
        _check_groups(scales, groups, columns)
    if zeros in files:
        _found(files, zeros, WORDS, (-(-rows * bits // WORD_BITS), groups))
    return bits


def check_scaled(files: SafetensorsFiles, name: str, scale: str, block: tuple[int, int]) -> None:
    """Scales are one for all, or one for each row, block, or group of columns."""
    shape, found = files[name].shape, files[scale].shape
    if len(shape) not in (2, 3):
        raise BadFileError(f"{name} is {shape_in_words(shape)}, and should be a matrix")
    if len(shape) == 3:
        if not found or found[0] != shape[0]:
            raise WrongShapeError(scale, (shape[0],), found)
        shape, found = shape[1:], found[1:]
    sides = (*found, 1, 1)[:2]
    is_known = len(found) <= 2 and all(
        count in (1, size) or count == -(-size // width) or (0 < count <= size and not size % count)
        for count, size, width in zip(sides, shape, block, strict=True)
    )
    if files[name].format == INTEGERS:  # those have no scales of blocks
        is_known = is_known and sides[0] in (1, shape[0])
    if not is_known:
        raise BadFileError(
            f"{scale} is {shape_in_words(found)}, which are no scales of rows, blocks or groups of "
            f"{name}, {shape_in_words(shape)}"
        )


def _found(
    files: SafetensorsFiles, name: str, formats: Collection[str], wanted: tuple[int | None, ...]
) -> Shape:
    tensor = files[name]
    if tensor.format not in formats:
        raise BadFileError(
            f"{name} is stored as {tensor.format}; {', '.join(sorted(formats))} is read"
        )
    found = tensor.shape
    if len(found) != len(wanted):
        kind = "matrix" if len(wanted) == 2 else "vector"
        raise BadFileError(f"{name} is {shape_in_words(found)}, and should be a {kind}")
    expected = tuple(
        have if size is None else size for size, have in zip(wanted, found, strict=True)
    )
    if found != expected:
        raise WrongShapeError(name, expected, found)
    return found


def _check_groups(name: str, groups: int, features: int) -> None:
    if groups < 1 or features % groups:
        raise BadFileError(f"{name} has {groups} groups, which do not divide {features} features")
