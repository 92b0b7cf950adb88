"""What a mixture of experts is made of: how many, and how rows are sent to them. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Scoring = Literal["softmax", "sigmoid", "softmax_of_chosen"]
"""The way from the router's logits to weights: softmax over all experts, then the best are taken
(qwen, mixtral, olmoe); each expert's sigmoid by itself; the best are taken, then a softmax over
those (gpt-oss)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    num_experts: int
    experts_per_token: int
    intermediate_size: int
    """The width of one expert."""
    scoring: Scoring = "softmax"
    normalizes: bool = False
    """Whether the weights of a token's experts are made to add up to one (``norm_topk_prob``)."""
    shared_intermediate_size: int | None = None
    """The width of the expert that every row goes through beside its own, where there is one."""
    gates_shared: bool = True
    """Whether a sigmoid of the row weighs the shared expert's output."""
    is_gated: bool = True
    """Whether experts have gates: else they are ``down(relu(up(x)) ** 2)``."""
    shared_gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    shared_down: str = "down_proj"
    """What that expert's projections are called after its name; gates first."""
    has_choice_bias: bool = False
    """Whether a number of each expert is added to its score where the best are chosen, and not
    where they are weighed; of sigmoids, or of the softmax over all."""
    num_groups: int = 1
    """Neighbouring experts are a group, all groups of one size. Where there are several, a row's
    experts are of its best groups alone, by their scores with the number that is added."""
    groups_per_token: int = 1
    group_experts: int = 2
    """How many experts decide what a group is worth: the best of them, added up."""
    weight_scale: float = 1.0
    """What the weights of a token's experts are multiplied with."""
    weighs_inputs: bool = False
    """Whether the weights meet what experts read, and not what they give."""
    has_bias: bool = False
    """Whether the router and each expert's projections have biases."""
    swish_gain: float = 1.0
    """The gain in the gate: ``gate * sigmoid(gain * gate)``."""
    held: tuple[int, int] | None = None
    """``[first, last)``: which of the experts this rank has; ``None``: all."""
    limit: float | None = None
    """What gates are clamped to from above and the rest from both sides, which is then raised by
    one; ``None``: neither."""

    @property
    def gate_up(self) -> tuple[str, ...]:
        """What each expert's projections before ``down_proj`` are called; gates first."""
        return ("gate_proj", "up_proj") if self.is_gated else ("up_proj",)

    @property
    def experts_per_group(self) -> int:
        return self.num_experts // self.num_groups

    @property
    def held_experts(self) -> range:
        return range(self.num_experts) if self.held is None else range(*self.held)
