"""The ``WeightSource`` over weight files: what models ask for, stacked, packed, accounted for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch

from inference.loading.tensor_files import TensorFiles
from inference.models.linear import LinearFactory, StackedLinear
from inference.models.stored import DenseWeight, GroupedWeight, StoredWeight
from inference.models.weights import Embedding, Linear
from inference.protocol.load import LoadProgress, LoadStage

OUTPUT_HEAD = "lm_head"


class OpenedWeights:
    def __init__(
        self,
        files: TensorFiles,
        factory: LinearFactory,
        on_progress: Callable[[LoadProgress], None],
        detail: str = "",
    ) -> None:
        """``detail``: in words, what is done to weights on their way in."""
        self.activation_dtype = factory.dtype
        self.device = factory.device
        self._files = files
        self._factory = factory
        self._on_progress = on_progress
        self._detail = detail
        self._read: set[str] = set()
        self._outcomes: Counter[str] = Counter()

    def tensor(self, name: str) -> torch.Tensor:
        self._note(name)
        return self._files.dense(name).to(self.device, self.activation_dtype)

    def has(self, name: str) -> bool:
        return name in self._files.names

    def linear(self, *names: str) -> Linear:
        """Weights of different formats keep each its own kernel, side by side."""
        runs = _runs_of_one_format([(name, self._stored(name)) for name in names])
        parts = [self._pack(run_names, stored) for run_names, stored in runs]
        return parts[0] if len(parts) == 1 else StackedLinear(parts)

    def stored(self, *names: str) -> StoredWeight:
        runs = _runs_of_one_format([(name, self._stored(name)) for name in names])
        if len(runs) == 1:
            run_names, stored = runs[0]
            self._record(run_names, _storage(stored))
            return stored
        self._record(names, "dequantised: fused with weights of another format")
        return _stack([_dense(stored) for _, stored in runs])

    def embedding(self, name: str) -> Embedding:
        stored = self._stored(name)
        self._record([name], _storage(stored))
        return self._factory.embedding(stored)

    def report(self) -> str:
        return "; ".join(
            f"{count} x {outcome}" for outcome, count in sorted(self._outcomes.items())
        )

    def _pack(self, names: Sequence[str], stored: StoredWeight) -> Linear:
        linear, outcome = self._factory.linear(stored, prefills=OUTPUT_HEAD not in names)
        self._record(names, outcome)
        return linear

    def _record(self, names: Sequence[str], outcome: str) -> None:
        for name in names:
            self._outcomes[f"{self._files.format_of(f'{name}.weight')} {outcome}"] += 1

    def _stored(self, name: str) -> StoredWeight:
        self._note(f"{name}.weight")
        stored = self._files.stored(f"{name}.weight")
        bias = self._bias(f"{name}.bias")
        if isinstance(stored, DenseWeight):
            return DenseWeight(weight=stored.weight, bias=bias)
        return GroupedWeight(
            bits=stored.bits,
            codes=stored.codes,
            scales=stored.scales,
            minimums=stored.minimums,
            bias=bias,
        )

    def _bias(self, name: str) -> torch.Tensor | None:
        if not self.has(name):
            return None
        self._note(name)
        return self._files.dense(name)

    def _note(self, name: str) -> None:
        self._read.add(name)
        self._on_progress(
            LoadProgress(
                stage=LoadStage.WEIGHTS,
                done=len(self._read),
                total=len(self._files.names),
                unit="tensors",
                detail=self._detail,
            )
        )


def _runs_of_one_format(
    named: Sequence[tuple[str, StoredWeight]],
) -> list[tuple[list[str], StoredWeight]]:
    """Stacks neighbours that one kernel can take together; the order stays."""
    runs: list[tuple[list[str], list[StoredWeight]]] = []
    for name, stored in named:
        if runs and _layout(runs[-1][1][-1]) == _layout(stored):
            runs[-1][0].append(name)
            runs[-1][1].append(stored)
        else:
            runs.append(([name], [stored]))
    return [(names, _stack(weights)) for names, weights in runs]


def _storage(stored: StoredWeight) -> str:
    return f"kept in {stored.bits} bits" if isinstance(stored, GroupedWeight) else "dense"


def _layout(stored: StoredWeight) -> tuple[int, bool]:
    """What must agree for weights to be stacked: bits (0: dense) and whether there are minimums."""
    if isinstance(stored, DenseWeight):
        return 0, False
    return stored.bits, stored.minimums is not None


def _stack(weights: Sequence[StoredWeight]) -> StoredWeight:
    if len(weights) == 1:
        return weights[0]
    bias = _stacked_bias(weights)
    grouped = [weight for weight in weights if isinstance(weight, GroupedWeight)]
    if not grouped:
        return DenseWeight(weight=torch.cat([_dense(w).weight for w in weights]), bias=bias)
    minimums = [weight.minimums for weight in grouped if weight.minimums is not None]
    return GroupedWeight(
        bits=grouped[0].bits,
        codes=torch.cat([weight.codes for weight in grouped]),
        scales=torch.cat([weight.scales for weight in grouped]),
        minimums=torch.cat(minimums) if minimums else None,
        bias=bias,
    )


def _stacked_bias(weights: Sequence[StoredWeight]) -> torch.Tensor | None:
    """Zeros where only others of the stack have one."""
    if all(weight.bias is None for weight in weights):
        return None
    return torch.cat(
        [torch.zeros(w.shape[0]) if w.bias is None else w.bias.float() for w in weights]
    )


def _dense(stored: StoredWeight) -> DenseWeight:
    if isinstance(stored, DenseWeight):
        return stored
    return DenseWeight(weight=stored.dequantize(), bias=stored.bias)
