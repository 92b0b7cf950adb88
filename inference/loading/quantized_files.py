"""``TensorFiles`` whose dense matrices come out quantised, one at a time as they are asked for.

Projections take the bits that were asked for. Embedding tables and output heads always take 8: no
residual stream dilutes what a table adds to the first hidden state, and no later product averages
out what a head adds to a logit. Norms, biases, and matrices whose rows are no multiple of 32 stay
dense.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

import torch

from inference.loading.errors import BadFileError, BadSourceError
from inference.loading.quantize import Bits, quantize
from inference.loading.tensor_files import TensorFiles
from inference.models.stored import GROUP_FEATURES, StoredWeight
from inference.protocol.load import Quantization

DENSE_FORMATS = frozenset({"F32", "F16", "BF16"})
TABLES = frozenset({"model.embed_tokens.weight", "lm_head.weight"})
BITS_OF_FORMAT: dict[str, Bits] = {"Q4_0": 4, "Q4_1": 4, "Q4_K": 4, "Q8_0": 8}
BITS: dict[Quantization, Bits] = {"q4": 4, "q8": 8}
SCALE_BYTES = 2


class QuantizedFiles:
    def __init__(self, files: TensorFiles, bits: Bits, num_threads: int) -> None:
        self.bits = bits
        self._files = files
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="quantise")

    @property
    def names(self) -> Collection[str]:
        return self._files.names

    def dense(self, name: str) -> torch.Tensor:
        return self._files.dense(name)

    def stored(self, name: str) -> StoredWeight:
        """Raises ``BadFileError`` for values that no group can hold."""
        bits = self._bits_of(name)
        if bits is None:
            return self._files.stored(name)
        try:
            return quantize(self._files.dense(name), bits, self._threads)
        except ValueError as error:
            raise BadFileError(
                f"{name} cannot be quantised: {error}; load it with quantization none"
            ) from None

    def format_of(self, name: str) -> str:
        bits = self._bits_of(name)
        return self._files.format_of(name) if bits is None else f"q{bits}"

    def shape_of(self, name: str) -> tuple[int, ...]:
        return self._files.shape_of(name)

    def bytes_of(self, name: str) -> int:
        """As they are once quantised."""
        bits = self._bits_of(name)
        if bits is None:
            return self._files.bytes_of(name)
        num_weights = math.prod(self.shape_of(name))
        numbers_per_group = 2 if bits == 4 else 1
        return num_weights * bits // 8 + num_weights // GROUP_FEATURES * (
            numbers_per_group * SCALE_BYTES
        )

    def close(self) -> None:
        self._threads.shutdown()
        self._files.close()

    def _bits_of(self, name: str) -> Bits | None:
        """``None`` for what stays as it is."""
        shape = self._files.shape_of(name)
        if len(shape) != 2 or shape[1] % GROUP_FEATURES:
            return None
        return _wanted_bits(name, self.bits) if _is_dense(self._files, name) else None


def check_quantization(
    files: TensorFiles, quantization: Quantization, device: torch.device
) -> Bits | None:
    """To how many bits ``quantization`` wants dense weights quantised, if at all. Raises
    ``BadSourceError`` for what cannot be had from these files or on this device."""
    if quantization == "auto":
        return None
    if quantization == "fp8":
        raise BadSourceError(_why_no_fp8(device))
    bits = BITS.get(quantization)
    _refuse_other_formats(files, bits, quantization)
    return bits


def _refuse_other_formats(files: TensorFiles, bits: Bits | None, quantization: str) -> None:
    """Quantising what is quantised already would add one error to another, unseen."""
    others = {
        files.format_of(name)
        for name in files.names
        if not _is_dense(files, name)
        and (bits is None or BITS_OF_FORMAT.get(files.format_of(name)) != _wanted_bits(name, bits))
    }
    if others:
        raise BadSourceError(
            f"quantization {quantization} needs dense weights, and these files hold "
            f"{', '.join(sorted(others))}; set quantization auto to load them as they are, or name "
            "the model's BF16 or F16 files"
        )


def _wanted_bits(name: str, bits: Bits) -> Bits:
    return 8 if name in TABLES else bits


def _is_dense(files: TensorFiles, name: str) -> bool:
    return files.format_of(name) in DENSE_FORMATS


def _why_no_fp8(device: torch.device) -> str:
    if device.type == "cpu":
        return "quantization fp8 is for CUDA devices that multiply it, not for a CPU; use q8"
    return f"quantization fp8 is not built yet ({device}); use q8"
