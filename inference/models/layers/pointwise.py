"""What a layer does to each row between its products: the residual sum with the norm that follows
it, and the gate of its MLP."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn.functional import rms_norm, silu


class Pointwise(Protocol):
    def add_and_norm(
        self, hidden: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(rows, features) each: ``hidden + added``, or ``hidden`` where nothing is added, and the
        root mean square norm of that, times ``weight`` (features,). Changes no argument."""
        ...

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """(rows, 2 * features), gates and then what they let through -> (rows, features)
        ``silu(gate) * up``."""
        ...


class TorchPointwise:
    def add_and_norm(
        self, hidden: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if added is not None:
            hidden = hidden + added
        return hidden, rms_norm(hidden, weight.shape, weight, eps)

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return silu(gate) * up
