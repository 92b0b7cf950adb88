"""``TensorFiles`` over safetensors whose matrices are quantised: each under its plain name.

    file                                            comes out as
    X.qweight, X.qzeros, X.scales, X.g_idx          X.weight, INT4 or INT8      GPTQ, AWQ
    X.weight_packed, X.weight_scale, ...            X.weight, INT4 or INT8      compressed-tensors
    X.weight as int8, X.weight_scale                X.weight, INT8              compressed-tensors
    X.weight as fp8, X.weight_scale_inv or _scale   X.weight, dense bfloat16

Codes of 4 and 8 bits stay what they are. Of fp8 only the kernel for experts takes a scale for each
block: other weights of fp8 are multiplied out, and may be quantised on their way in as dense ones
are. Scales of activations and of keys and values are not used: those stay in the model's own dtype.

The headers show first whether the tensors that a matrix is made of fit each other. Whether the
matrix that they make is the model's is checked of all matrices alike, in ``checked_shapes``.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from inference.loading.safetensors import packed_matrices as matrices
from inference.loading.safetensors.tensors import DTYPE_BYTES, SafetensorsFiles
from inference.loading.weights.tensor_files import WrappedFiles
from inference.models.families.quantization import Quantization
from inference.models.weights.stored import (
    GROUP_FEATURES,
    DenseWeight,
    Fp8Weight,
    StoredWeight,
    with_tensors,
    written_out,
)
from inference.protocol.load_errors import (
    BadFileError,
    MissingTensorError,
    WrongShapeError,
    shape_in_words,
)

CODES = (".qweight", ".weight_packed")
"""Endings of tensors that hold a matrix' codes."""
BESIDE = (
    *(".qzeros", ".scales", ".g_idx", ".weight_scale", ".weight_scale_inv", ".weight_zero_point"),
    *(".weight_shape", ".weight_g_idx", ".input_scale", ".activation_scale", ".input_zero_point"),
    *(".input_global_scale", ".k_scale", ".v_scale", ".q_scale", ".output_scale"),
)
"""Suffixes of tensors that belong to a matrix or to its input."""
SCALES = ("_scale_inv", "_scale")
"""Endings of the scales of a scaled matrix."""
SCALE_FORMATS = frozenset({*DTYPE_BYTES, "F8_E8M0"})
FP8, INT8, INT4 = "F8_E4M3", "INT8", "INT4"
WORD_BITS = 32
FLOATS = frozenset({"F32", "F16", "BF16"})
WORDS = frozenset({"I32"})
INTEGERS = "I8"
INDICES = frozenset({"I32", "I64"})
Shape = tuple[int, ...]


class PackedFiles(WrappedFiles):
    _files: SafetensorsFiles

    def __init__(self, files: SafetensorsFiles, quantization: Quantization) -> None:
        """Raises ``BadFileError``."""
        super().__init__(files)
        self._quantization = quantization
        self._modules: dict[str, str] = {}
        """``X.weight`` -> ``X``, of matrices in codes."""
        self._scaled: dict[str, str] = {}
        """Names of scaled matrices, and of their scales."""
        plain: set[str] = set()
        for name in files.names:
            ending = name[name.rfind(".") :]
            if ending in CODES:
                module = name.removesuffix(ending)
                self._modules[f"{module}.weight"] = module
            elif scale := self._scale_of(name):
                self._scaled[name] = scale
            elif not name.endswith(BESIDE + SCALES):
                plain.add(name)
        self._plain = plain
        for module in self._modules.values():
            self._check_module(module)
        for name, scale in self._scaled.items():
            check_scaled(files, name, scale, quantization.block)

    def _check_module(self, module: str) -> None:
        if f"{module}.weight_packed" in self._files.names:
            check_packed(self._files, module, self.shape_of(f"{module}.weight"))
        else:
            check_words(self._files, module, self._quantization)

    def _scale_of(self, name: str) -> str | None:
        if self._files.format_of(name) not in ("F8_E4M3", "I8"):
            return None
        found = next((name + end for end in SCALES if name + end in self._files.names), None)
        if found is None:
            raise BadFileError(f"{name} is quantised and has no scale")
        if (format := self._files.format_of(found)) not in SCALE_FORMATS:
            raise BadFileError(f"{found} is stored as {format}, which is not read here")
        return found

    @property
    def names(self) -> Collection[str]:
        return self._plain | self._modules.keys() | self._scaled.keys()

    def dense(self, name: str) -> torch.Tensor:
        if name in self._plain:
            return self._files.dense(name)
        return written_out(self.stored(name))

    def stored(self, name: str) -> StoredWeight:
        if name in self._plain:
            return self._files.stored(name)
        if name in self._scaled:
            return self._of_scales(self._files.dense(name), self._files.dense(self._scaled[name]))
        return self._of_codes(self._module(name))

    def stored_rows(self, name: str, first: int, last: int) -> StoredWeight:
        if name in self._plain:
            return self._files.stored_rows(name, first, last)
        shape = self.shape_of(name)
        if len(shape) == 2:
            return with_tensors(self.stored(name), lambda tensor: tensor[first:last])
        index, begin = divmod(first, shape[1])
        weight, scales = (self._files.part(key, index) for key in (name, self._scaled[name]))
        found = self._of_scales(weight, scales)
        return with_tensors(found, lambda tensor: tensor[begin : begin + last - first])

    def has_fp8(self, name: str) -> bool:
        """Whether its scales are of blocks whose inputs are whole groups of ours."""
        scale = self._scaled.get(name)
        if scale is None or self._files.format_of(name) != FP8:
            return False
        shape, scales = self._files.shape_of(name), self._files.shape_of(scale)
        rows, columns = self._quantization.block
        blocks = -(-shape[0] // rows), -(-shape[-1] // columns)
        return len(shape) == 2 and scales == blocks and columns % GROUP_FEATURES == 0

    def fp8(self, name: str) -> Fp8Weight:
        return Fp8Weight(
            codes=self._files.dense(name),
            scales=self._files.dense(self._scaled[name]),
            block_shape=self._quantization.block,
        )

    def _of_scales(self, weight: torch.Tensor, scales: torch.Tensor) -> StoredWeight:
        if weight.dtype == torch.int8:
            return matrices.eight_bit(weight, scales)
        return DenseWeight(weight=matrices.scaled(weight, scales, self._quantization.block))

    def _of_codes(self, module: str) -> StoredWeight:
        if f"{module}.weight_packed" in self._files.names:
            rows, columns = self.shape_of(f"{module}.weight")
            codes = matrices.from_packed(
                self._files.dense(f"{module}.weight_packed"),
                self._optional(f"{module}.weight_zero_point"),
                self._files.dense(f"{module}.weight_scale"),
                (rows, columns),
            )
            return matrices.stored(codes, self._groups_of(module))
        words = self._files.dense(f"{module}.qweight")
        scales, zeros = self._files.dense(f"{module}.scales"), self._optional(f"{module}.qzeros")
        if self._quantization.method == "awq":
            return matrices.stored(matrices.from_awq(words, self._needed(zeros, module), scales))
        codes = matrices.from_gptq(
            words,
            zeros,
            scales,
            self._quantization.bits,
            zeros_less_one=self._quantization.zeros_less_one,
        )
        return matrices.stored(codes, self._groups_of(module))

    def _groups_of(self, module: str) -> torch.Tensor | None:
        """The group of each input feature; ``None`` where equal groups follow each other."""
        is_packed = f"{module}.weight_packed" in self._files.names
        name = f"{module}.{'weight_g_idx' if is_packed else 'g_idx'}"
        groups = self._optional(name)
        if groups is None or bool((groups < 0).any()):
            return None
        scales = f"{module}.{'weight_scale' if is_packed else 'scales'}"
        num_groups = self._files.shape_of(scales)[1 if is_packed else 0]
        if int(groups.max()) >= num_groups:
            raise BadFileError(f"{name} names the group {int(groups.max())} of {num_groups}")
        is_even = len(groups) % num_groups == 0
        return None if is_even and bool((groups.diff() >= 0).all()) else groups

    def _optional(self, name: str) -> torch.Tensor | None:
        return self._files.dense(name) if name in self._files.names else None

    def _needed(self, tensor: torch.Tensor | None, module: str) -> torch.Tensor:
        if tensor is None:
            raise MissingTensorError(f"the safetensors files have no zero points of {module}")
        return tensor

    def format_of(self, name: str) -> str:
        """Returns the format as it is kept: codes whose groups do not follow each other are
        multiplied out."""
        if name in self._plain:
            return self._files.format_of(name)
        if name in self._scaled:
            return FP8 if self._files.format_of(name) == FP8 else INT8
        module = self._module(name)
        if self._groups_of(module) is not None:
            return "BF16"
        return INT4 if self._bits_of(module) == 4 else INT8

    def _bits_of(self, module: str) -> int:
        if self._quantization.method != "compressed-tensors":
            return self._quantization.bits
        words = self._files.shape_of(f"{module}.weight_packed")[1]
        return 32 * words // self.shape_of(f"{module}.weight")[1]

    def shape_of(self, name: str) -> tuple[int, ...]:
        if name in self._plain or name in self._scaled:
            return self._files.shape_of(name)
        module = self._module(name)
        if f"{module}.weight_packed" in self._files.names:
            return tuple(int(size) for size in self._files.dense(f"{module}.weight_shape").tolist())
        first, second = self._files.shape_of(f"{module}.qweight")
        if self._quantization.method == "awq":
            return 8 * second, first
        return second, first * 32 // self._quantization.bits

    def bytes_of(self, name: str) -> int:
        if name in self._plain:
            return self._files.bytes_of(name)
        if name in self._scaled:
            return sum(map(self._files.bytes_of, (name, self._scaled[name])))
        module = self._module(name)
        endings = CODES + BESIDE
        held = [f"{module}{end}" for end in endings if f"{module}{end}" in self._files.names]
        return sum(map(self._files.bytes_of, held))

    def _module(self, name: str) -> str:
        try:
            return self._modules[name]
        except KeyError:
            raise MissingTensorError(f"the safetensors files have no tensor {name}") from None


def check_words(files: SafetensorsFiles, module: str, quantization: Quantization) -> None:
    """AWQ and GPTQ: ``qweight`` and what stands beside it. Raises ``BadFileError``."""
    per_word = WORD_BITS // quantization.bits
    first, second = _matrix(files, f"{module}.qweight", WORDS)
    is_awq = quantization.method == "awq"
    in_features, out_features = (first, second * per_word) if is_awq else (first * per_word, second)
    groups, _ = _matrix(files, f"{module}.scales", FLOATS)
    _check(files, f"{module}.scales", (groups, out_features), FLOATS)
    if f"{module}.g_idx" not in files.names:
        _check_groups(f"{module}.scales", groups, in_features)
    zeros = groups, -(-out_features // per_word)
    _check_optional(files, f"{module}.qzeros", zeros, WORDS)
    _check_optional(files, f"{module}.g_idx", (in_features,), INDICES)


def check_packed(files: SafetensorsFiles, module: str, shape: Shape) -> None:
    """compressed-tensors: ``weight_packed`` and what stands beside it, of a matrix of ``shape``.
    Raises ``BadFileError``."""
    rows, words = _matrix(files, f"{module}.weight_packed", WORDS)
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
    scales = f"{module}.weight_scale"
    groups = _columns(files, scales, rows)
    if f"{module}.weight_g_idx" not in files.names:
        _check_groups(scales, groups, columns)
    zeros = -(-rows * bits // WORD_BITS), groups
    _check_optional(files, f"{module}.weight_zero_point", zeros, WORDS)
    _check_optional(files, f"{module}.weight_g_idx", (columns,), INDICES)


def check_scaled(files: SafetensorsFiles, name: str, scale: str, block: tuple[int, int]) -> None:
    """A matrix, or a stack of them, in fp8 or 8 bits, and its scales: one for all, or for each row,
    block, or group of columns. Raises ``BadFileError``."""
    shape, found = files.shape_of(name), files.shape_of(scale)
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
    if files.format_of(name) == INTEGERS:  # those have no scales of blocks
        is_known = is_known and sides[0] in (1, shape[0])
    if not is_known:
        raise BadFileError(
            f"{scale} is {shape_in_words(found)}, which are no scales of rows, blocks or groups of "
            f"{name}, {shape_in_words(shape)}"
        )


def _matrix(files: SafetensorsFiles, name: str, formats: Collection[str]) -> tuple[int, int]:
    _check_format(files, name, formats)
    shape = files.shape_of(name)
    if len(shape) != 2:
        raise BadFileError(f"{name} is {shape_in_words(shape)}, and should be a matrix")
    return shape[0], shape[1]


def _columns(files: SafetensorsFiles, name: str, rows: int) -> int:
    _check_format(files, name, FLOATS)
    shape = files.shape_of(name)
    if shape[:1] != (rows,) or len(shape) > 2:
        raise WrongShapeError(name, (rows, *shape[1:2]), shape)
    return shape[1] if len(shape) == 2 else 1


def _check(files: SafetensorsFiles, name: str, expected: Shape, formats: Collection[str]) -> None:
    _check_format(files, name, formats)
    if (found := files.shape_of(name)) != expected:
        raise WrongShapeError(name, expected, found)


def _check_optional(
    files: SafetensorsFiles, name: str, expected: Shape, formats: Collection[str]
) -> None:
    if name in files.names:
        _check(files, name, expected, formats)


def _check_format(files: SafetensorsFiles, name: str, formats: Collection[str]) -> None:
    if (format := files.format_of(name)) not in formats:
        raise BadFileError(f"{name} is stored as {format}; {', '.join(sorted(formats))} is read")


def _check_groups(name: str, groups: int, features: int) -> None:
    if groups < 1 or features % groups:
        raise BadFileError(f"{name} has {groups} groups, which do not divide {features} features")
