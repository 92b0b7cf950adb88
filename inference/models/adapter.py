"""Adapters (LoRA): the weights that they may change, and their deltas on torch's operators.

y = W x  ─▶  y += up (down x)      of each row whose sequence has the adapter
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import linear

from inference.models.config import ModelConfig
from inference.models.errors import UnsupportedAdapterError
from inference.models.families.registry import family_of

if TYPE_CHECKING:
    from inference.models.step_input import StepInput
    from inference.models.weight_source import Phased


ADAPTABLE_ROLES = frozenset({"column", "whole_column", "row", "state"})
"""``state`` is for a Gated DeltaNet's projections of its decays and betas."""
PLANNED_RANK = 16
"""Memory is planned for adapters of this rank: one of rank 64 takes the room of four."""
_IN_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")


def adaptable_shapes(config: ModelConfig) -> Mapping[str, tuple[int, int]]:
    """(out_features, in_features) of each adaptable weight, by Hugging Face's name without
    ``.weight``: projections of layers, but not the MLP of a layer with experts."""
    found: dict[str, tuple[int, int]] = {}
    for tensor in family_of(config).tensors(config):
        name, _, kind = tensor.name.rpartition(".")
        match = _IN_LAYER.fullmatch(name)
        if match is None or kind != "weight" or tensor.role not in ADAPTABLE_ROLES:
            continue
        if int(match[1]) >= config.num_layers:
            continue  # a layer of multi-token prediction
        is_sparse = config.mlp_kinds[int(match[1])] == "sparse"
        if len(tensor.shape) == 2 and not (is_sparse and match[2].startswith("mlp.")):
            found[name] = tensor.shape[0], tensor.shape[1]
    return found


def planned_adapter_bytes(config: ModelConfig, bytes_per_number: int) -> int:
    features = sum(sum(shape) for shape in adaptable_shapes(config).values())
    return PLANNED_RANK * features * bytes_per_number


@dataclass(frozen=True, slots=True)
class LowRank:
    """``down`` (rank, in_features), ``up`` (out_features, rank), of any float dtype."""

    down: torch.Tensor
    up: torch.Tensor
    scale: float

    @property
    def scaled_up(self) -> torch.Tensor:
        return self.up.float() * self.scale


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """On the CPU, as in the files. Keys are Hugging Face's names without ``.weight``."""

    modules: Mapping[str, LowRank]

    @property
    def num_bytes(self) -> int:
        pairs = (t for module in self.modules.values() for t in (module.down, module.up))
        return sum(tensor.numel() * tensor.element_size() for tensor in pairs)


@dataclass(frozen=True, slots=True)
class TorchPart:
    inner: slice
    """This part's slice of what ``down`` gives for all parts."""
    outputs: slice
    up: torch.Tensor


@dataclass(frozen=True, slots=True)
class TorchProjection:
    down: torch.Tensor
    """(ranks of all parts, in_features)"""
    parts: tuple[TorchPart, ...]

    def add_to(self, y: torch.Tensor, x: torch.Tensor) -> None:
        """(num_rows, …) both; in place."""
        inner = linear(x, self.down)
        for part in self.parts:
            y[:, part.outputs] += linear(inner[:, part.inner], part.up)


TorchAdapter = Mapping[int, TorchProjection]
"""An adapter's projections, by the ``id`` of the model's."""


def check_known(weights: AdapterWeights, names: Iterable[str]) -> None:
    """Raises ``UnsupportedAdapterError``."""
    unknown = weights.modules.keys() - set(names)
    if unknown:
        raise UnsupportedAdapterError(f"{min(unknown)} is not adapted by the code that runs here")


def torch_adapter(
    weights: AdapterWeights,
    stacked: Mapping[int, Sequence[tuple[str, int]]],
    device: torch.device,
    dtype: torch.dtype,
) -> TorchAdapter:
    """``stacked``: by a projection's ``id`` its weights' names and numbers of outputs."""
    check_known(weights, (name for names in stacked.values() for name, _ in names))
    return {
        key: _projection(weights, names, device, dtype)
        for key, names in stacked.items()
        if any(name in weights.modules for name, _ in names)
    }


def _projection(
    weights: AdapterWeights,
    names: Sequence[tuple[str, int]],
    device: torch.device,
    dtype: torch.dtype,
) -> TorchProjection:
    downs: list[torch.Tensor] = []
    parts: list[TorchPart] = []
    first_inner = first_output = 0
    for name, out_features in names:
        if (module := weights.modules.get(name)) is not None:
            last_inner = first_inner + len(module.down)
            downs.append(module.down.to(device, dtype))
            outputs = slice(first_output, first_output + out_features)
            up = module.scaled_up.to(device, dtype)
            parts.append(TorchPart(slice(first_inner, last_inner), outputs, up))
            first_inner = last_inner
        first_output += out_features
    return TorchProjection(torch.cat(downs), tuple(parts))


class StepAdapters:
    """On a CPU decode rows are computed one by one: a row's sums must not depend on the others."""

    def __init__(
        self, step: StepInput, device: torch.device, *, together: bool | None = None
    ) -> None:
        groups = row_groups(step, together=device.type != "cpu" if together is None else together)
        scattered = [rows for _, rows in groups if isinstance(rows, list)]
        uploaded = iter(_uploaded(scattered, device))
        self._groups: list[tuple[TorchAdapter, slice | torch.Tensor]] = [
            (adapter, next(uploaded) if isinstance(rows, list) else rows)
            for adapter, rows in groups
        ]

    def add_to(self, y: torch.Tensor, projection: Phased, x: torch.Tensor) -> torch.Tensor:
        key = id(projection)
        for adapter, rows in self._groups:
            adapted = adapter.get(key)
            if adapted is None:
                continue
            if isinstance(rows, slice):
                adapted.add_to(y[rows], x[rows])
            else:
                some = y.index_select(0, rows)
                adapted.add_to(some, x.index_select(0, rows))
                y.index_copy_(0, rows, some)
        return y


def row_groups(step: StepInput, *, together: bool) -> list[tuple[TorchAdapter, slice | list[int]]]:
    """Each adapter with the rows that are computed at once; a slice where they are neighbours."""
    assert step.adapters is not None
    groups: list[tuple[TorchAdapter, slice | list[int]]] = []
    rows_of: dict[int, tuple[TorchAdapter, list[int]]] = {}
    for row, sequence in enumerate(step.sequences[: step.num_decode_rows].tolist()):
        adapter = step.adapters[sequence]
        if adapter is not None:
            _, rows = rows_of.setdefault(id(adapter) if together else row, (adapter, []))
            rows.append(row)
    for adapter, rows in rows_of.values():
        are_neighbours = rows[-1] - rows[0] + 1 == len(rows)
        groups.append((adapter, slice(rows[0], rows[-1] + 1) if are_neighbours else rows))
    for query in step.prompts:
        adapter = step.adapters[query.sequence]
        if adapter is not None:
            groups.append((adapter, slice(query.first_row, query.last_row)))
    return groups


def _uploaded(rows: Sequence[list[int]], device: torch.device) -> list[torch.Tensor]:
    if not rows:
        return []
    flat = torch.tensor([row for group in rows for row in group])
    if device.type == "cuda":
        flat = flat.pin_memory()
    return list(torch.split(flat.to(device, non_blocking=True), [len(group) for group in rows]))
