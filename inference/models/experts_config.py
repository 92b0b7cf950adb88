"""What a mixture of experts is made of: how many, and how rows are sent to them. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Scoring = Literal["softmax", "sigmoid", "softmax_of_chosen"]
"""From the router's logits to weights: softmax over all experts, then the best are taken (qwen,
mixtral, olmoe); each expert's sigmoid by itself; the best are taken, then a softmax over those
(gpt-oss)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    num_experts: int
    experts_per_token: int
    intermediate_size: int
    """Of one expert."""
    scoring: Scoring = "softmax"
    normalizes: bool = False
    """Whether the weights of a token's experts are made to add up to one (``norm_topk_prob``)."""
    shared_intermediate_size: int | None = None
    """Of the expert that every row goes through beside its own, where there is one."""
    gates_shared: bool = True
    """Whether a sigmoid of the row weighs what the shared expert says."""
    has_choice_bias: bool = False
    """Whether a number of each expert is added to its score where the best are chosen, and not
    where they are weighed; of sigmoids."""
    weight_scale: float = 1.0
    """Of a token's experts' weights."""
    has_bias: bool = False
    """Of the router and of each expert's projections."""
    swish_gain: float = 1.0
    """Of the gate: ``gate * sigmoid(gain * gate)``."""
    held: tuple[int, int] | None = None
    """``[first, last)``: which of the experts this rank has; ``None``: all."""
    limit: float | None = None
    """What gates are clamped to from above and the rest from both sides, which is then raised by
    one; ``None``: neither."""

    @property
    def held_experts(self) -> range:
        return range(self.num_experts) if self.held is None else range(*self.held)
