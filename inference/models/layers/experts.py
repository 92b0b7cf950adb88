"""A mixture of experts as a layer's MLP: one after the other on a CPU, stacked on a card.

    rows ─▶ router ─▶ k experts and weights of each row ─▶ rows sorted by expert
         ─▶ gate|up ─▶ silu(gate) * up * weight ─▶ down ─▶ each row's k outputs added up

The weight multiplies before ``down``, which is linear; where ``down`` has a bias, its output.

A rank that holds a part of the experts routes rows over all of them, and computes its own part of
the sum:

    routes      [ 0 3 ][ 2 1 ]        of experts 0 to 3, this rank holding 2 and 3
    its own     [ - 1 ][ 0 - ]        counted from its first; those of others come last"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import linear, pad

from inference.models.config import ModelConfig
from inference.models.layer_configs import ExpertsConfig
from inference.models.layers.norms import gate_of
from inference.models.layers.step import Step
from inference.models.weight_source import GroupedProduct, Linear, WeightSource

CHOICE_BIAS = "gate.e_score_correction_bias"


@dataclass(frozen=True, slots=True)
class Routes:
    """``experts`` int64 and ``weights`` float32, both (num_rows, experts_per_token), best first."""

    experts: torch.Tensor
    weights: torch.Tensor


def route(
    config: ExpertsConfig, logits: torch.Tensor, choice_bias: torch.Tensor | None = None
) -> Routes:
    """``logits`` (num_rows, num_experts); ``choice_bias`` (num_experts,)."""
    logits = logits.float()
    if config.scoring == "softmax_of_chosen":
        best, experts = torch.topk(logits, config.experts_per_token, dim=-1)
        return Routes(experts, torch.softmax(best, dim=-1))
    scores = torch.softmax(logits, dim=-1) if config.scoring == "softmax" else logits.sigmoid()
    ranked = scores if choice_bias is None else scores + choice_bias.float()
    if config.num_groups > 1:
        ranked = _of_best_groups(config, ranked)
    experts = torch.topk(ranked, config.experts_per_token, dim=-1).indices
    weights = scores.gather(-1, experts)
    if config.normalizes:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return Routes(experts, weights if config.weight_scale == 1.0 else weights * config.weight_scale)


def _of_best_groups(config: ExpertsConfig, ranked: torch.Tensor) -> torch.Tensor:
    """(num_rows, num_experts), minus infinity for experts of other groups."""
    grouped = ranked.view(-1, config.num_groups, config.experts_per_group)
    worth = grouped.topk(config.group_experts, dim=-1).values.sum(dim=-1)
    best = worth.topk(config.groups_per_token, dim=-1).indices
    is_left_out = torch.ones_like(worth, dtype=torch.bool).scatter(-1, best, False)
    return grouped.masked_fill(is_left_out.unsqueeze(-1), float("-inf")).flatten(-2)


@dataclass(frozen=True, slots=True)
class SortedRows:
    """One entry for each row and expert of that row, the lowest expert's first."""

    rows: torch.Tensor
    """(num_entries,) the row of each entry."""
    weights: torch.Tensor
    """(num_entries, 1) float32."""
    ends: torch.Tensor
    """(num_experts,) int32: where each expert's entries end."""

    @classmethod
    def of(cls, routes: Routes, num_experts: int) -> SortedRows:
        """Waits for nothing on a CUDA device."""
        by_entry, order = torch.sort(routes.experts.flatten(), stable=True)
        experts = torch.arange(num_experts, device=order.device)
        ends = torch.searchsorted(by_entry, experts, right=True).to(torch.int32)
        rows = order // routes.experts.shape[1]
        return cls(rows, routes.weights.flatten()[order].unsqueeze(1), ends)


def held_routes(config: ExpertsConfig, routes: Routes) -> Routes:
    """Counted from this rank's first expert; those of others are behind its last."""
    if config.held is None:
        return routes
    first, last = config.held
    is_held = (routes.experts >= first) & (routes.experts < last)
    own = torch.where(is_held, routes.experts - first, last - first)
    return Routes(own, routes.weights)


class GatedExpert:
    def __init__(self, config: ExpertsConfig, gate_up: Linear, down: Linear) -> None:
        """``gate_up`` has the gates' outputs first."""
        self.is_phaseless = gate_up.is_phaseless and down.is_phaseless
        self._config = config
        self._gate_up = gate_up
        self._down = down
        self._gate = gate_of(config)

    def decode(self, x: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        """``weights`` (num_rows, 1) float32, of the output, or of ``x``."""
        return self._output(self._gate_up.decode(x), weights, self._down.decode)

    def prefill(self, x: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        return self._output(self._gate_up.prefill(x), weights, self._down.prefill)

    def _output(
        self,
        gate_up: torch.Tensor,
        weights: torch.Tensor | None,
        down: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        if self._config.weighs_inputs:
            return down(self._gate(_weighted(gate_up, weights)))
        inner = self._gate(gate_up)
        if self._config.has_bias:  # which is weighed as well
            return _weighted(down(inner), weights)
        return down(_weighted(inner, weights))


def _weighted(inner: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    return inner if weights is None else (inner * weights).to(inner.dtype)


class LoopedExperts:
    """For the CPU. A decode row is multiplied by itself: the number of rows with the same expert
    depends on their content, and must not change how this row's products are summed."""

    is_phaseless = False

    def __init__(self, experts: Sequence[GatedExpert]) -> None:
        self._experts = list(experts)

    def decode(self, x: torch.Tensor, routes: Routes) -> torch.Tensor:
        """(num_rows, hidden) -> the same shape and dtype, weighted by ``routes``."""
        total = torch.zeros_like(x)
        for expert, rows, weights in self._hit(routes):
            for row, weight in zip(rows.tolist(), weights.unbind(), strict=True):
                total[row : row + 1] += expert.decode(x[row : row + 1], weight)
        return total

    def prefill(self, x: torch.Tensor, routes: Routes) -> torch.Tensor:
        total = torch.zeros_like(x)
        for expert, rows, weights in self._hit(routes):
            total.index_add_(0, rows, expert.prefill(x.index_select(0, rows), weights))
        return total

    def _hit(self, routes: Routes) -> Iterator[tuple[GatedExpert, torch.Tensor, torch.Tensor]]:
        """Experts that have rows, with those and their weights."""
        sorted_rows, begin = SortedRows.of(routes, len(self._experts)), 0
        for expert, end in zip(self._experts, sorted_rows.ends.tolist(), strict=True):
            if end > begin:
                yield expert, sorted_rows.rows[begin:end], sorted_rows.weights[begin:end]
            begin = end


class GroupedExperts:
    """For CUDA. Shapes follow from the number of rows alone, so that a step can be captured."""

    is_phaseless = True

    def __init__(
        self,
        config: ExpertsConfig,
        gate_up: GroupedProduct,
        down: GroupedProduct,
        biases: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:
        """``biases``: of both, (num_experts, out_features). With ``config.held``, entries of other
        ranks' experts are beyond the last group: their products are arbitrary."""
        assert biases is None or not config.weighs_inputs, "no family has both"
        self._config = config
        self._gate_up = gate_up
        self._down = down
        self._gate = gate_of(config)
        if biases is not None and config.held is not None:
            biases = pad(biases[0], (0, 0, 0, 1)), pad(biases[1], (0, 0, 0, 1))
        self._biases = biases

    def decode(self, x: torch.Tensor, routes: Routes) -> torch.Tensor:
        sorted_rows = SortedRows.of(routes, self._gate_up.num_experts)
        outputs = self._outputs(x, sorted_rows)
        if self._config.held is not None:
            entry = torch.arange(len(outputs), device=outputs.device)
            is_others = entry >= sorted_rows.ends[-1]
            outputs = outputs.masked_fill(is_others.unsqueeze(1), 0)
        # In the order of each row's experts: adding in place would take whichever comes first.
        num_rows, per_row = routes.experts.shape
        own = torch.argsort(sorted_rows.rows, stable=True)
        return outputs[own].view(num_rows, per_row, -1).float().sum(dim=1).to(x.dtype)

    prefill = decode

    def _outputs(self, x: torch.Tensor, sorted_rows: SortedRows) -> torch.Tensor:
        ends, weights = sorted_rows.ends, sorted_rows.weights
        inner = self._gate_up(x, ends, sorted_rows.rows)
        if self._config.weighs_inputs:  # the product is linear
            return self._down(self._gate(_weighted(inner, weights)), ends)
        if self._biases is None:
            return self._down(_weighted(self._gate(inner), weights), ends)
        entry = torch.arange(len(inner), device=ends.device, dtype=ends.dtype)
        experts = torch.searchsorted(ends, entry, right=True)
        of_inner, of_output = (bias.index_select(0, experts) for bias in self._biases)
        return _weighted(self._down(self._gate(inner + of_inner), ends) + of_output, weights)


Experts = LoopedExperts | GroupedExperts


@dataclass(frozen=True)
class SharedExpert:
    """``gate`` (1, hidden); ``None``: the output is not weighed."""

    expert: GatedExpert
    gate: torch.Tensor | None

    @property
    def is_phaseless(self) -> bool:
        return self.expert.is_phaseless

    def weights(self, x: torch.Tensor) -> torch.Tensor | None:
        return None if self.gate is None else linear(x, self.gate).float().sigmoid()


class SparseMlp:
    def __init__(
        self,
        config: ExpertsConfig,
        router: torch.Tensor,
        experts: Experts,
        shared: SharedExpert | None = None,
        router_bias: torch.Tensor | None = None,
        choice_bias: torch.Tensor | None = None,
    ) -> None:
        """``router`` (num_experts, hidden); both biases (num_experts,)."""
        self.config = config
        self.router = router
        self._router_bias = router_bias
        self._choice_bias = choice_bias
        self.experts = experts
        self._shared = shared
        self.is_phaseless = experts.is_phaseless and (shared is None or shared.is_phaseless)

    def __call__(self, rows: torch.Tensor, step: Step) -> torch.Tensor:
        return step.product(self, rows)

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        added = self.experts.decode(x, self.routes(x))
        if self._shared is not None:
            added = added + self._shared.expert.decode(x, self._shared.weights(x))
        return added

    def prefill(self, x: torch.Tensor) -> torch.Tensor:
        added = self.experts.prefill(x, self.routes(x))
        if self._shared is not None:
            added = added + self._shared.expert.prefill(x, self._shared.weights(x))
        return added

    def routes(self, x: torch.Tensor) -> Routes:
        logits = linear(x, self.router, self._router_bias)
        return held_routes(self.config, route(self.config, logits, self._choice_bias))


def load_sparse_mlp(config: ModelConfig, weights: WeightSource, index: int) -> SparseMlp:
    assert config.experts is not None, "its layers are sparse"
    return load_mixture(config.experts, weights, f"model.layers.{index}.mlp")


def load_mixture(config: ExpertsConfig, weights: WeightSource, prefix: str) -> SparseMlp:
    """Each expert has names of its own: ``loading/weights/named_files.py`` cuts stacks up."""
    shared = None
    if config.shared_intermediate_size is not None:
        gate = None
        if config.gates_shared:
            gate = weights.tensor(f"{prefix}.shared_expert_gate.weight").view(1, -1)
        names = config.shared_gate_up, config.shared_down
        shared = SharedExpert(_expert(config, weights, f"{prefix}.shared_expert", *names), gate)
    experts: Experts
    if weights.device.type == "cpu":
        names = config.gate_up, "down_proj"
        prefixes = expert_prefixes(config, prefix)
        experts = LoopedExperts([_expert(config, weights, name, *names) for name in prefixes])
    else:
        experts = load_grouped(config, weights, prefix)
    router_bias = weights.tensor(f"{prefix}.gate.bias") if config.has_bias else None
    router = weights.tensor(f"{prefix}.gate.weight")
    choice_bias = None
    if config.has_choice_bias:  # ERNIE's files have it along two axes
        choice_bias = weights.tensor(f"{prefix}.{CHOICE_BIAS}").flatten()
    return SparseMlp(config, router, experts, shared, router_bias, choice_bias)


def expert_prefixes(config: ExpertsConfig, prefix: str) -> Iterator[str]:
    return (f"{prefix}.experts.{index}" for index in config.held_experts)


def _expert(
    config: ExpertsConfig,
    weights: WeightSource,
    prefix: str,
    gate_up_names: tuple[str, ...],
    down_name: str,
) -> GatedExpert:
    gate_up = weights.linear(*(f"{prefix}.{name}" for name in gate_up_names))
    down = weights.linear(f"{prefix}.{down_name}")
    return GatedExpert(config, gate_up, down)


def load_grouped(config: ExpertsConfig, weights: WeightSource, prefix: str) -> GroupedExperts:
    prefixes = list(expert_prefixes(config, prefix))
    gate_up = weights.grouped([[f"{own}.{part}" for part in config.gate_up] for own in prefixes])
    down = weights.grouped([[f"{own}.down_proj"] for own in prefixes])
    biases = _load_biases(config, weights, prefix) if config.has_bias else None
    return GroupedExperts(config, gate_up, down, biases)


def _load_biases(
    config: ExpertsConfig, weights: WeightSource, prefix: str
) -> tuple[torch.Tensor, torch.Tensor]:
    gate_ups, downs = [], []
    for name in expert_prefixes(config, prefix):
        both = [weights.tensor(f"{name}.{part}_proj.bias") for part in ("gate", "up")]
        gate_ups.append(torch.cat(both))
        downs.append(weights.tensor(f"{name}.down_proj.bias"))
    return torch.stack(gate_ups), torch.stack(downs)
