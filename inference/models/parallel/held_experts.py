"""The experts of a mixture that one rank holds. Rows are routed over all of them, on every rank
alike; what this one computes is its own experts' part of the sum.

    routes      [ 0 3 ][ 2 1 ]        of experts 0 to 3, this rank holding 2 and 3
    its own     [ - 1 ][ 0 - ]        counted from its first; those of others come last
"""

from __future__ import annotations

import torch

from inference.models.layers.experts import Experts, GroupedExperts, Routes, SortedRows


class HeldExperts:
    """``experts``: what computes those that are held, and leaves out entries beyond the last."""

    def __init__(self, experts: Experts, held: tuple[int, int]) -> None:
        self._experts = experts
        self._first, self._last = held

    @property
    def is_phaseless(self) -> bool:
        return self._experts.is_phaseless

    def decode(self, x: torch.Tensor, routes: Routes) -> torch.Tensor:
        return self._experts.decode(x, self._own(routes))

    def prefill(self, x: torch.Tensor, routes: Routes) -> torch.Tensor:
        return self._experts.prefill(x, self._own(routes))

    def _own(self, routes: Routes) -> Routes:
        is_held = (routes.experts >= self._first) & (routes.experts < self._last)
        beyond = self._last - self._first
        return Routes(torch.where(is_held, routes.experts - self._first, beyond), routes.weights)


class HeldGroupedExperts(GroupedExperts):
    """Entries beyond the last expert are in no group: what stands in their rows is anything.
    ``biases`` have a row more than there are experts."""

    def _outputs(self, x: torch.Tensor, sorted_rows: SortedRows) -> torch.Tensor:
        outputs = super()._outputs(x, sorted_rows)
        entry = torch.arange(len(outputs), device=outputs.device)
        return outputs.masked_fill((entry >= sorted_rows.ends[-1]).unsqueeze(1), 0)
