"""The ``WeightSource`` over weight files, and the dense weights that the quality of a quantised
load is measured against."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from threading import Lock
from typing import TypeVar

import torch

from inference.loading.formats import DENSE_FORMATS
from inference.loading.progress import OnProgress
from inference.loading.weights.tensor_files import FileTensor, TensorFiles
from inference.models.config import ModelConfig
from inference.models.families.decoder_tensors import PREDICTOR_HEAD
from inference.models.families.registry import family_of
from inference.models.families.roles import MATRIX_ROLES
from inference.models.layers.linear import LinearFactory, StackedLinear
from inference.models.lazy_weights import LazyWeight, bias_or_zeros, lazy, stack_lazy
from inference.models.stored_weights import (
    CodebookWeight,
    DenseWeight,
    ExpertWeight,
    Fp8Weight,
    GroupedWeight,
    StoredWeight,
    stack,
    stack_fp8,
)
from inference.models.weight_source import (
    Embedding,
    GroupedProduct,
    Linear,
    StackedProduct,
    WeightSource,
)
from inference.protocol.load_report import LoadProgress, LoadStage

OUTPUT_HEADS = frozenset({"lm_head", PREDICTOR_HEAD})

Item = TypeVar("Item")


class OpenedWeights:
    def __init__(
        self,
        files: TensorFiles,
        factory: LinearFactory,
        on_progress: OnProgress,
        detail: str = "",
    ) -> None:
        """``detail``: how weights are converted, for progress messages."""
        self.activation_dtype = factory.dtype
        self.device = factory.device
        self._files = files
        self._factory = factory
        self._on_progress = on_progress
        self._detail = detail
        self._report_lock = Lock()
        """Several threads read and report."""
        self._read: set[str] = set()
        self._outcomes: Counter[str] = Counter()
        self._packed_bytes: Counter[str] = Counter()

    def tensor(self, name: str) -> torch.Tensor:
        return self._noted(name).dense().to(self.device, self.activation_dtype)

    def has(self, name: str) -> bool:
        return name in self._files

    def linear(self, *names: str) -> Linear:
        """Weights of different formats keep each its own kernel, side by side."""
        parts: list[Linear] = []
        for run in _runs([(name, self._stored(name)) for name in names], lambda one: one[1]):
            own = [name for name, _ in run]
            stacked = _stack([stored for _, stored in run])
            prefills = OUTPUT_HEADS.isdisjoint(own)
            linear, outcome = self._factory.linear(stacked, prefills=prefills)
            self._record(own, outcome)
            parts.append(linear)
        return parts[0] if len(parts) == 1 else StackedLinear(parts)

    def grouped(self, experts: Sequence[Sequence[str]]) -> GroupedProduct:
        parts, begin = list[GroupedProduct](), 0
        for run in _runs([self._of_expert(name) for name in experts[0]], lambda one: one):
            end = begin + len(run)
            parts.append(self._grouped([names[begin:end] for names in experts]))
            begin = end
        return parts[0] if len(parts) == 1 else StackedProduct(parts)

    def _grouped(self, experts: Sequence[Sequence[str]]) -> GroupedProduct:
        product, outcome = self._factory.grouped(
            lambda index: _stack_experts([self._of_expert(name) for name in experts[index]]),
            len(experts),
        )
        names = [name for expert in experts for name in expert]
        self._record(names, outcome, getattr(product, "num_bytes", 0) // len(names))
        return product

    def _of_expert(self, name: str) -> ExpertWeight:
        tensor = self._noted(f"{name}.weight")
        return tensor.fp8() if tensor.has_fp8 else tensor.stored()

    def stored(self, name: str) -> StoredWeight:
        return self.stored_parts(name)[0].whole()

    def stored_parts(self, *names: str) -> list[LazyWeight]:
        weights = [self._lazy(name) for name in names]
        for name, weight in zip(names, weights, strict=True):
            self._record([name], _storage(weight.sample), _packed_bytes(weight))
        return [stack_lazy(run) for run in _runs(weights, lambda weight: weight.sample)]

    def embedding(self, name: str) -> Embedding:
        stored = self._stored(name)
        self._record([name], _storage(stored))
        return self._factory.embedding(stored)

    def all_tensors(self) -> dict[str, torch.Tensor]:
        found = {}
        for name in self._files:
            format, tensor = self._files[name].format, self._noted(name).dense()
            how = "dense" if format in DENSE_FORMATS else "dequantised"
            if tensor.is_floating_point():
                tensor = tensor.to(self.activation_dtype)
            else:
                how = "as it is"
            found[name] = tensor
            self._outcomes[f"{format} {how}"] += 1
        return found

    def report(self) -> str:
        return "; ".join(
            f"{count} x {outcome}{_megabytes(self._packed_bytes[outcome])}"
            for outcome, count in sorted(self._outcomes.items())
        )

    def _record(self, names: Sequence[str], outcome: str, packed_bytes: int = 0) -> None:
        for name in names:
            outcome_here = f"{self._files[f'{name}.weight'].format} {outcome}"
            with self._report_lock:
                self._outcomes[outcome_here] += 1
                self._packed_bytes[outcome_here] += packed_bytes

    def _stored(self, name: str) -> StoredWeight:
        return replace(self._noted(f"{name}.weight").stored(), bias=self._bias(name))

    def _lazy(self, name: str) -> LazyWeight:
        own = f"{name}.weight"
        if (reader := self._files[own].reader()) is None:
            return lazy(self._stored(name))
        self._noted(own)
        return LazyWeight(readers=[reader], sample=reader.rows(0, 1), bias=self._bias(name))

    def _bias(self, name: str) -> torch.Tensor | None:
        bias = f"{name}.bias"
        return self._noted(bias).dense() if self.has(bias) else None

    def _noted(self, name: str) -> FileTensor:
        with self._report_lock:
            self._read.add(name)
            self._on_progress(
                LoadProgress(
                    stage=LoadStage.WEIGHTS,
                    done=len(self._read),
                    total=len(self._files),
                    unit="tensors",
                    detail=self._detail,
                )
            )
        return self._files[name]


def _runs(items: Iterable[Item], weight: Callable[[Item], ExpertWeight]) -> list[list[Item]]:
    return [list(run) for _, run in groupby(items, lambda item: _layout(weight(item)))]


def _storage(stored: StoredWeight) -> str:
    if isinstance(stored, DenseWeight):
        return "dense"
    bits = stored.packed_bits if isinstance(stored, GroupedWeight) else stored.bits
    return f"kept in {bits} bits"


def _packed_bytes(weight: LazyWeight) -> int:
    sample = weight.sample
    return 0 if isinstance(sample, DenseWeight) else sample.packed_bytes * weight.shape[0]


def _megabytes(num_bytes: int) -> str:
    return f" ({num_bytes / 1e6:.1f} MB)" if num_bytes else ""


def _layout(stored: ExpertWeight) -> tuple[object, ...]:
    if isinstance(stored, DenseWeight | Fp8Weight):
        return (type(stored),)
    if isinstance(stored, CodebookWeight):
        has_supers = stored.super_scales is not None
        return type(stored), stored.codebook, stored.group_features, has_supers
    is_mxfp4 = isinstance(stored, GroupedWeight) and stored.is_mxfp4
    return type(stored), stored.bits, stored.minimums is not None, is_mxfp4


def _stack_experts(weights: Sequence[ExpertWeight]) -> ExpertWeight:
    """Fp8's blocks do not cross from one weight into the next: each keeps its scales."""
    if not isinstance(weights[0], Fp8Weight):
        return _stack([weight for weight in weights if not isinstance(weight, Fp8Weight)])
    return stack_fp8([weight for weight in weights if isinstance(weight, Fp8Weight)])


def _stack(weights: Sequence[StoredWeight]) -> StoredWeight:
    if any(weight.bias is not None for weight in weights):
        weights = [replace(weight, bias=bias_or_zeros(weight)) for weight in weights]
    return stack(weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unquantized:
    weights: WeightSource
    format: str
    fingerprint: str


def open_unquantized(
    files: TensorFiles,
    config: ModelConfig,
    paths: Sequence[Path],
    device: torch.device,
    dtype: torch.dtype,
) -> Unquantized:
    """Nothing is read yet. On a CPU the products are in float32, whatever ``dtype``."""
    exact = LinearFactory(
        device,
        torch.float32 if device.type == "cpu" else dtype,
        prefill_copies=False,
        exact=True,
    )
    return Unquantized(
        weights=OpenedWeights(files, exact, lambda _: None),
        format=files[_first_projection(files, config)].format,
        fingerprint=_fingerprint(paths),
    )


def _first_projection(files: TensorFiles, config: ModelConfig) -> str:
    projections = (
        name
        for tensor in family_of(config).tensors(config)
        if tensor.role in MATRIX_ROLES
        for name in tensor.parts or (tensor.name,)
    )
    return next(name for name in projections if name in files)


def _fingerprint(paths: Sequence[Path]) -> str:
    """Names, sizes and times: reading gigabytes again would take as long as measuring does."""
    digest = hashlib.sha256()
    for path in paths:
        stat = path.stat()
        digest.update(f"{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
    return digest.hexdigest()
