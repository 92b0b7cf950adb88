"""``TensorFiles`` whose dense matrices come out quantised, one at a time (decision 9). Tables and
output heads always take 8 bits, and with fp8 stay dense: no residual stream dilutes what a table
adds to the first hidden state, and no later product averages out what a head adds to a logit.
``LinearFactory`` rounds projections of fp8 on their device. Norms, biases, routers, and matrices
whose sides fit no kernel stay dense.

A matrix becomes groups of 32 input features, with float16 scales and minimums:

    8 bits   w = scale * code                code -127..127, scale = largest / 127, rounded up
    6 bits   w = scale * code                code -32..31, the best of a few fits
    5 bits   w = scale * code                code -16..15, the same
    4 bits   w = scale * code + minimum      code 0..15, the same

With 5 and 6 bits a scale may be negative: the lowest code, which has no opposite, then stands for a
positive value. A group's squared error is never above that of its ends alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from inference.loading.formats import DENSE_FORMATS, InSitu, format_of
from inference.loading.weights.tensor_files import INTEGER_BYTES, FileTensor, TensorFiles
from inference.models.config import ModelConfig
from inference.models.families.registry import family_of
from inference.models.families.roles import MATRIX_ROLES, TABLE_ROLES, Role
from inference.models.kv_format import FP8_CAPABILITY
from inference.models.layers.kernels import fp8_reason, has_fp8
from inference.models.stored_weights import GROUP_FEATURES, GroupedWeight, StoredWeight
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import BadFileError, BadSourceError
from inference.supervised_threads import SupervisedPool

Bits = Literal[4, 5, 6, 8]
Floats = npt.NDArray[np.float32]

CHUNK_WEIGHTS = 256 * 1024
"""One thread converts so many at once: they fit a core's cache, and numpy releases the interpreter
lock meanwhile."""
LARGEST_FLOAT16 = float(np.finfo(np.float16).max)
LARGEST_8_BIT_CODE = 127
CODES: dict[Bits, tuple[int, int]] = {4: (0, 15), 5: (-16, 15), 6: (-32, 31)}
NARROWER_RANGE = 0.9
"""Part of a group's range where a second fit of 4 bits starts: a finer step without the ends."""
BEYOND_THE_LOWEST_CODE = 1.1
"""Start of a signed fit that clips its group's largest value for a finer step."""
REFITS = 2


class _Fit(NamedTuple):
    """Per group (num_groups,), float32 that float16 holds exactly; ``codes`` (32, num_groups).
    ``minimums``: those of 4 bits alone."""

    scales: Floats
    minimums: Floats | None
    codes: Floats


def quantize(weight: torch.Tensor, bits: Bits, threads: ThreadPoolExecutor) -> GroupedWeight:
    """``weight``: (out_features, in_features) of float32, float16 or bfloat16 on the CPU,
    in_features a multiple of 32. Raises ``ValueError`` for values that are not finite, or beyond
    float16."""
    out_features, in_features = weight.shape
    codes = np.empty((out_features, in_features), np.uint8 if bits == 4 else np.int8)
    scales = np.empty((out_features, in_features // GROUP_FEATURES), np.float16)
    minimums = np.empty_like(scales) if bits == 4 else None
    num_rows = max(1, CHUNK_WEIGHTS // in_features)

    def chunk(first: int) -> None:
        rows = slice(first, first + num_rows)
        fit = _fit(_by_group(weight[rows]), bits)
        codes[rows] = fit.codes.T.astype(codes.dtype).reshape(-1, in_features)
        scales[rows] = fit.scales.reshape(scales[rows].shape)
        if minimums is not None and fit.minimums is not None:
            minimums[rows] = fit.minimums.reshape(scales[rows].shape)

    for _ in threads.map(chunk, range(0, out_features, num_rows)):
        pass  # map hands a chunk's exception on here
    return GroupedWeight(
        bits=bits,
        codes=torch.from_numpy(codes),
        scales=torch.from_numpy(scales),
        minimums=None if minimums is None else torch.from_numpy(minimums),
    )


def _by_group(rows: torch.Tensor) -> Floats:
    """(num_rows, in_features) -> (32, num_groups): sums over a group run across whole rows."""
    values = _float32(rows)
    if not np.abs(values).max() <= LARGEST_FLOAT16:  # a NaN compares false
        raise ValueError("it holds values that are not finite, or beyond float16")
    return np.ascontiguousarray(values.reshape(-1, GROUP_FEATURES).T)


def _float32(rows: torch.Tensor) -> Floats:
    """Converts to float32 without torch, which would start a thread team for each of ours."""
    if rows.dtype != torch.bfloat16:
        return rows.numpy().astype(np.float32)
    halves = rows.view(torch.int16).numpy().view(np.uint16)
    return (halves.astype(np.uint32) << 16).view(np.float32)


def _fit(values: Floats, bits: Bits) -> _Fit:
    if bits == 8:
        return _fit_8_bits(values)
    starts = _starts(values, bits)
    best = _rounded(values, *starts[0], bits)
    best_error = _squared_error(values, best)
    for scales, minimums in starts:
        for _ in range(REFITS):
            codes = _codes(values, scales, minimums, bits)
            scales, minimums = _refitted(values, codes, has_minimums=bits == 4)
        fit = _rounded(values, scales, minimums, bits)
        error = _squared_error(values, fit)
        better = error < best_error
        if best.minimums is not None:
            assert fit.minimums is not None, "as many as the best has"
            best = best._replace(minimums=np.where(better, fit.minimums, best.minimums))
        best = best._replace(
            scales=np.where(better, fit.scales, best.scales),
            codes=np.where(better, fit.codes, best.codes),
        )
        best_error = np.where(better, error, best_error)
    return best


def _fit_8_bits(values: Floats) -> _Fit:
    exact = np.abs(values).max(axis=0) / LARGEST_8_BIT_CODE
    scales = exact.astype(np.float16)
    rounded_down = scales.astype(np.float32) < exact  # the largest value would get no code
    scales = np.where(rounded_down, np.nextafter(scales, np.float16(np.inf)), scales)
    wide = scales.astype(np.float32)
    return _Fit(wide, None, np.rint(values * _inverse(wide)))


def _starts(values: Floats, bits: Bits) -> list[tuple[Floats, Floats | None]]:
    lowest, highest = CODES[bits]
    if bits == 4:
        smallest, largest = values.min(axis=0), values.max(axis=0)
        span = largest - smallest
        inner = smallest + (1 - NARROWER_RANGE) / 2 * span
        return [(span / highest, smallest), (NARROWER_RANGE * span / highest, inner)]
    largest = np.take_along_axis(values, np.abs(values).argmax(axis=0)[None], axis=0)[0]
    return [(largest / code, None) for code in (lowest, highest, BEYOND_THE_LOWEST_CODE * lowest)]


def _rounded(values: Floats, scales: Floats, minimums: Floats | None, bits: Bits) -> _Fit:
    scales = scales.astype(np.float16).astype(np.float32)
    if minimums is not None:
        minimums = minimums.astype(np.float16).astype(np.float32)
    return _Fit(scales, minimums, _codes(values, scales, minimums, bits))


def _codes(values: Floats, scales: Floats, minimums: Floats | None, bits: Bits) -> Floats:
    above = values if minimums is None else values - minimums
    codes: Floats = np.rint(above * _inverse(scales))
    return np.clip(codes, *CODES[bits], out=codes)


def _refitted(values: Floats, codes: Floats, *, has_minimums: bool) -> tuple[Floats, Floats | None]:
    if not has_minimums:
        return _slope(values, codes), None
    mean_code = codes.mean(axis=0)
    slope = _slope(values, codes - mean_code)
    return slope, values.mean(axis=0) - slope * mean_code


def _slope(values: Floats, codes: Floats) -> Floats:
    squares = (codes * codes).sum(axis=0)
    slope: Floats = (codes * values).sum(axis=0) / np.where(squares > 0, squares, 1)
    return slope


def _squared_error(values: Floats, fit: _Fit) -> Floats:
    off = fit.scales * fit.codes - values
    if fit.minimums is not None:
        off += fit.minimums
    error: Floats = (off * off).sum(axis=0)
    return error


def _inverse(scales: Floats) -> Floats:
    """Zero for zero: a group of one value has no use for codes."""
    inverse: Floats = np.divide(1, scales, out=np.zeros_like(scales), where=scales != 0)
    return inverse


BITS: dict[InSitu, Bits] = {"q4": 4, "q5": 5, "q6": 6, "q8": 8}


class QuantizedFiles(TensorFiles):
    def __init__(
        self, files: TensorFiles, config: ModelConfig, wanted: InSitu, num_threads: int
    ) -> None:
        threads = SupervisedPool(num_threads, thread_name_prefix="quantise")
        roles = roles_of(config)
        tensors: dict[str, FileTensor] = dict(files)
        for name, tensor in files.items():
            becomes = _becomes(tensor, roles.get(name), wanted)
            if becomes is not None or tensor.has_fp8:
                tensors[name] = QuantizedTensor(name, tensor, becomes, threads)

        def close() -> None:
            threads.shutdown()
            files.close()

        super().__init__(tensors, close)


def _becomes(tensor: FileTensor, role: Role | None, wanted: InSitu) -> InSitu | None:
    if len(tensor.shape) != 2 or tensor.format not in DENSE_FORMATS:
        return None
    becomes = _wanted_for(role, wanted)
    if becomes == "fp8":
        return becomes if fp8_reason((tensor.shape[0], tensor.shape[1])) is None else None
    return None if tensor.shape[1] % GROUP_FEATURES else becomes


class QuantizedTensor(FileTensor):
    """Hides ``has_fp8`` of a tensor of fp8, which comes out dense."""

    def __init__(
        self, name: str, dense: FileTensor, becomes: InSitu | None, threads: ThreadPoolExecutor
    ) -> None:
        self._name, self._dense, self._threads = name, dense, threads
        self._bits = BITS.get(becomes) if becomes else None
        self.shape, self.format = dense.shape, becomes or dense.format
        self.num_bytes = dense.num_bytes
        if becomes is not None:
            self.num_bytes = int(math.prod(self.shape) * (format_of(becomes).native or 0) / 8)

    def dense(self) -> torch.Tensor:
        return self._dense.dense()

    def stored(self) -> StoredWeight:
        """Raises ``BadFileError`` for values that no group can hold."""
        if self._bits is None:
            return self._dense.stored()
        try:
            return quantize(self._dense.dense(), self._bits, self._threads)
        except ValueError as error:
            raise BadFileError(
                f"{self._name} cannot be quantised: {error}; load it with quantization none"
            ) from None


def roles_of(config: ModelConfig) -> dict[str, Role]:
    return {
        name: tensor.role
        for tensor in family_of(config).tensors(config)
        for name in (tensor.name, *tensor.parts)
    }


def check_quantization(
    files: TensorFiles, config: ModelConfig, spec: LoadSpec, device: torch.device
) -> InSitu | None:
    """``None``: nothing is quantised, also where files already have the wanted format. Raises
    ``BadSourceError`` for a format that these files or this device cannot have."""
    if spec.quantization == "auto":
        return None
    wanted = None if spec.quantization == "none" else spec.quantization
    if wanted is not None and (problem := _problem(spec, config, device)):
        raise BadSourceError(problem)
    _refuse_other_formats(files, roles_of(config), wanted)
    has_dense_matrix = any(
        tensor.format in DENSE_FORMATS and len(tensor.shape) == 2 for tensor in files.values()
    )
    return wanted if has_dense_matrix else None


def _problem(spec: LoadSpec, config: ModelConfig, device: torch.device) -> str | None:
    if spec.quantization == "fp8" and not has_fp8(device):
        least = ".".join(str(number) for number in FP8_CAPABILITY)
        return (
            f"quantization fp8 needs a CUDA device of compute capability {least} or more, which "
            f"{device} is not; use q8"
        )
    # On a CPU the native decoder computes in float32 from packed weights.
    if spec.dtype == "float32" and device.type != "cpu":
        return (
            f"quantization {spec.quantization} and dtype float32 exclude each other on {device}: "
            "products in float32 take dense weights; set dtype to auto"
        )
    if family_of(config).uses_transformers:
        return (
            f"quantization {spec.quantization} is not built for {config.architecture}, which "
            "transformers' own module computes; set it to auto"
        )
    return None


def _refuse_other_formats(
    files: TensorFiles, roles: Mapping[str, Role], wanted: InSitu | None
) -> None:
    """Quantising again would silently add errors."""
    others = {
        format
        for name, format in ((name, tensor.format) for name, tensor in files.items())
        if format not in DENSE_FORMATS | INTEGER_BYTES.keys()
        and roles.get(name) != "tower"  # which becomes dense, whatever its own file holds
        and (wanted is None or format_of(format).same != _wanted_for(roles.get(name), wanted))
    }
    if others:
        raise BadSourceError(
            f"quantization {wanted or 'none'} needs dense weights, and these files hold "
            f"{', '.join(sorted(others))}; set quantization auto to load them as they are, or name "
            "the model's BF16 or F16 files"
        )


def _wanted_for(role: Role | None, wanted: InSitu) -> InSitu | None:
    if role in TABLE_ROLES:
        return None if wanted == "fp8" else "q8"
    return wanted if role in MATRIX_ROLES else None
