"""What the parts of a model cost on each kind of device: plain data for plans. Pure.

first stage only     table, head, norms, tower       OuterCost
each layer           mixer, MLP, router │ experts     LayerCost
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class KindBytes:
    """Bytes of one thing on either kind of device: formats are packed differently there."""

    cpu: int = 0
    cuda: int = 0

    def on(self, kind: Kind) -> int:
        return self.cpu if kind == "cpu" else self.cuda

    def __add__(self, other: KindBytes) -> KindBytes:
        return KindBytes(self.cpu + other.cpu, self.cuda + other.cuda)


NOTHING = KindBytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCost:
    """One layer. Routed experts are counted apart from the rest of its weights."""

    weight_bytes: KindBytes
    expert_bytes: KindBytes = NOTHING
    num_weights: int = 0
    """Elements that each row is multiplied with."""
    num_expert_weights: int = 0
    """Elements of all routed experts."""
    kv_token_bytes: KindBytes = NOTHING
    state_bytes: int = 0
    """The bytes of one sequence's state, on either kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCosts:
    layers: tuple[LayerCost, ...]
    outer_bytes: KindBytes
    """Table of tokens, output head, last norm and tower: the first stage has them."""
    head_bytes: KindBytes
    """What of that is read for each step: the head, or the table that it is tied to."""
    num_head_weights: int
    hidden_size: int
    active_share: float = 1.0
    """Share of the routed experts that one row goes through."""
    step_bytes: KindBytes = NOTHING
    """Activations of the largest step, on each stage."""
    context_tokens: int = 0
    """Most tokens of a sequence."""

    @property
    def weight_bytes(self) -> KindBytes:
        """The weight bytes of the whole model."""
        total = self.outer_bytes
        for layer in self.layers:
            total = total + layer.weight_bytes + layer.expert_bytes
        return total
