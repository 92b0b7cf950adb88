"""Whether the tensors that a quantised matrix is made of fit each other, by file headers alone.

What they are is in ``packed_files``. Whether the matrix that they make is the model's is checked of
all matrices alike, in ``checked_shapes``. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from inference.models.families.quantization import Quantization
from inference.protocol.load_errors import BadFileError, WrongShapeError, shape_in_words

WORD_BITS = 32
FLOATS = frozenset({"F32", "F16", "BF16"})
WORDS = frozenset({"I32"})
INTEGERS = "I8"
INDICES = frozenset({"I32", "I64"})

Shape = tuple[int, ...]


class Headers(Protocol):
    @property
    def names(self) -> Collection[str]: ...

    def shape_of(self, name: str) -> Shape: ...

    def format_of(self, name: str) -> str: ...


def check_words(files: Headers, module: str, quantization: Quantization) -> None:
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


def check_packed(files: Headers, module: str, shape: Shape) -> None:
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


def check_scaled(files: Headers, name: str, scale: str, block: tuple[int, int]) -> None:
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


def _matrix(files: Headers, name: str, formats: Collection[str]) -> tuple[int, int]:
    _check_format(files, name, formats)
    shape = files.shape_of(name)
    if len(shape) != 2:
        raise BadFileError(f"{name} is {shape_in_words(shape)}, and should be a matrix")
    return shape[0], shape[1]


def _columns(files: Headers, name: str, rows: int) -> int:
    """Returns how many scales each row has, at least one."""
    _check_format(files, name, FLOATS)
    shape = files.shape_of(name)
    if shape[:1] != (rows,) or len(shape) > 2:
        raise WrongShapeError(name, (rows, *shape[1:2]), shape)
    return shape[1] if len(shape) == 2 else 1


def _check(files: Headers, name: str, expected: Shape, formats: Collection[str]) -> None:
    _check_format(files, name, formats)
    if (found := files.shape_of(name)) != expected:
        raise WrongShapeError(name, expected, found)


def _check_optional(files: Headers, name: str, expected: Shape, formats: Collection[str]) -> None:
    if name in files.names:
        _check(files, name, expected, formats)


def _check_format(files: Headers, name: str, formats: Collection[str]) -> None:
    """Raises ``MissingTensorError`` as well."""
    if (format := files.format_of(name)) not in formats:
        raise BadFileError(f"{name} is stored as {format}; {', '.join(sorted(formats))} is read")


def _check_groups(name: str, groups: int, features: int) -> None:
    if groups < 1 or features % groups:
        raise BadFileError(f"{name} has {groups} groups, which do not divide {features} features")
