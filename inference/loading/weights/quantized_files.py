"""``TensorFiles`` whose dense matrices come out quantised, one at a time as they are asked for.

With q4, q5, q6 and q8, projections take the bits that were asked for. Embedding tables and output
heads always take 8: no residual stream dilutes what a table adds to the first hidden state, and no
later product averages out what a head adds to a logit. With fp8 they stay dense, for the same
reason, and projections are rounded on their device, by ``LinearFactory``; here they are only
counted.

Norms, biases, routers of experts, and matrices whose sides fit no kernel stay dense.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch

from inference.loading.safetensors.tensors import INTEGER_BYTES
from inference.loading.weights.quantize import Bits, quantize
from inference.loading.weights.tensor_files import TensorFiles, WrappedFiles
from inference.models.cache.kv_format import FP8_CAPABILITY
from inference.models.config import ModelConfig
from inference.models.families.registry import family_of
from inference.models.families.roles import MATRIX_ROLES, TABLE_ROLES, Role
from inference.models.layers.kernels import fp8_reason, has_fp8
from inference.models.weights.lazy import RowReader
from inference.models.weights.stored import GROUP_FEATURES, StoredWeight
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import BadFileError, BadSourceError
from inference.supervised_threads import SupervisedPool

InSitu = Literal["q4", "q5", "q6", "q8", "fp8"]
"""The formats that a dense matrix can be made into."""

DENSE_FORMATS = frozenset({"F32", "F16", "BF16", "F8_E4M3"})
"""fp8 is multiplied out as it is read, which leaves a dense weight."""
SAME_AS: dict[str, InSitu] = {
    **dict.fromkeys(("Q4_0", "Q4_1", "Q4_K", "IQ4_NL", "IQ4_XS", "INT4"), "q4"),
    **dict.fromkeys(("Q5_0", "Q5_1", "Q5_K"), "q5"),
    "Q6_K": "q6",
    **dict.fromkeys(("Q8_0", "INT8"), "q8"),
}
BITS: dict[InSitu, Bits] = {"q4": 4, "q5": 5, "q6": 6, "q8": 8}
BYTES_PER_GROUP: dict[InSitu, int] = {
    "q4": 16 + 2 * 2,
    "q5": 20 + 2,
    "q6": 24 + 2,
    "q8": 32 + 2,
    "fp8": 32,
}


class QuantizedFiles(WrappedFiles):
    def __init__(
        self, files: TensorFiles, config: ModelConfig, wanted: InSitu, num_threads: int
    ) -> None:
        super().__init__(files)
        self.wanted = wanted
        self._roles = roles_of(config)
        self._threads = SupervisedPool(num_threads, thread_name_prefix="quantise")

    def stored(self, name: str) -> StoredWeight:
        """Raises ``BadFileError`` for values that no group can hold."""
        becomes = self._becomes(name)
        if becomes is None or becomes == "fp8":
            return super().stored(name)
        try:
            return quantize(self._files.dense(name), BITS[becomes], self._threads)
        except ValueError as error:
            raise BadFileError(
                f"{name} cannot be quantised: {error}; load it with quantization none"
            ) from None

    def reader(self, name: str) -> RowReader | None:
        return super().reader(name) if self._becomes(name) is None else None

    def has_fp8(self, name: str) -> bool:
        """Weights of fp8 are dense here, and are quantised."""
        return False

    def format_of(self, name: str) -> str:
        return self._becomes(name) or super().format_of(name)

    def bytes_of(self, name: str) -> int:
        """Once it is quantised."""
        becomes = self._becomes(name)
        if becomes is None:
            return super().bytes_of(name)
        return math.prod(self.shape_of(name)) * BYTES_PER_GROUP[becomes] // GROUP_FEATURES

    def close(self) -> None:
        self._threads.shutdown()
        self._files.close()

    def _becomes(self, name: str) -> InSitu | None:
        """``None`` for what stays as it is."""
        shape = self._files.shape_of(name)
        if len(shape) != 2 or not _is_dense(self._files, name):
            return None
        becomes = _wanted_for(self._roles.get(name), self.wanted)
        if becomes == "fp8":
            return becomes if fp8_reason((shape[0], shape[1])) is None else None
        return None if shape[1] % GROUP_FEATURES else becomes


def roles_of(config: ModelConfig) -> dict[str, Role]:
    """Each tensor's role, by its name and by the name of each part that files may hold it in."""
    return {
        name: tensor.role
        for tensor in family_of(config).tensors(config)
        for name in (tensor.name, *tensor.parts)
    }


def check_quantization(
    files: TensorFiles, config: ModelConfig, spec: LoadSpec, device: torch.device
) -> InSitu | None:
    """The format that dense weights are quantised to; ``None`` where none are, also for files that
    already have the wanted format. Raises ``BadSourceError`` for a format that these files or this
    device cannot have."""
    if spec.quantization == "auto":
        return None
    wanted = None if spec.quantization == "none" else spec.quantization
    if wanted == "fp8":
        _refuse_without_fp8(device)
    if wanted is not None:
        _refuse_float32(spec, device)
        _refuse_transformers_backend(config, wanted)
    _refuse_other_formats(files, roles_of(config), wanted)
    has_dense_matrix = any(
        _is_dense(files, name) and len(files.shape_of(name)) == 2 for name in files.names
    )
    return wanted if has_dense_matrix else None


def _refuse_other_formats(
    files: TensorFiles, roles: Mapping[str, Role], wanted: InSitu | None
) -> None:
    """Quantising again would silently add errors."""
    others = {
        files.format_of(name)
        for name in files.names
        if not (_is_dense(files, name) or files.format_of(name) in INTEGER_BYTES)
        and roles.get(name) != "tower"  # which becomes dense, whatever its own file holds
        and (
            wanted is None
            or SAME_AS.get(files.format_of(name)) != _wanted_for(roles.get(name), wanted)
        )
    }
    if others:
        raise BadSourceError(
            f"quantization {wanted or 'none'} needs dense weights, and these files hold "
            f"{', '.join(sorted(others))}; set quantization auto to load them as they are, or name "
            "the model's BF16 or F16 files"
        )


def _wanted_for(role: Role | None, wanted: InSitu) -> InSitu | None:
    """``None`` for what stays dense, also for a tensor that the model does not compute with."""
    if role in TABLE_ROLES:
        return None if wanted == "fp8" else "q8"
    return wanted if role in MATRIX_ROLES else None


def _is_dense(files: TensorFiles, name: str) -> bool:
    return files.format_of(name) in DENSE_FORMATS


def _refuse_without_fp8(device: torch.device) -> None:
    if not has_fp8(device):
        least = ".".join(str(number) for number in FP8_CAPABILITY)
        raise BadSourceError(
            f"quantization fp8 needs a CUDA device of compute capability {least} or more, which "
            f"{device} is not; use q8"
        )


def _refuse_transformers_backend(config: ModelConfig, wanted: InSitu) -> None:
    if family_of(config).uses_transformers:
        raise BadSourceError(
            f"quantization {wanted} is not built for {config.architecture}, which transformers' "
            "own module computes; set it to auto"
        )


def _refuse_float32(spec: LoadSpec, device: torch.device) -> None:
    """On a CPU the native decoder computes in float32 from packed weights."""
    if spec.dtype == "float32" and device.type != "cpu":
        raise BadSourceError(
            f"quantization {spec.quantization} and dtype float32 exclude each other on {device}: "
            "products in float32 take dense weights; set dtype to auto"
        )
