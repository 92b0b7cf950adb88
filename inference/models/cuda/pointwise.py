"""The residual sum with its norm, and the MLP's gate, by one Triton kernel each, where torch's
operators need two."""

from __future__ import annotations

import torch
import triton
from torch.nn.functional import rms_norm

from inference.models.cuda.pointwise_kernels import add_and_norm_kernel, gate_kernel

BLOCK_FEATURES = 1024
WIDEST_ROW_OF_A_WARP = 512
"""Features of a norm; a wider row has more warps."""


class TritonPointwise:
    def add_and_norm(
        self, hidden: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if added is None:
            return hidden, rms_norm(hidden, weight.shape, weight, eps)
        num_rows, features = hidden.shape
        padded = triton.next_power_of_2(features)
        summed, normed = torch.empty_like(hidden), torch.empty_like(hidden)
        add_and_norm_kernel[(num_rows,)](
            hidden.contiguous(),
            added.contiguous(),
            weight,
            summed,
            normed,
            eps,
            features=features,
            padded_features=padded,
            num_warps=min(max(padded // WIDEST_ROW_OF_A_WARP, 1), 16),
        )
        return summed, normed

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        num_rows, features = len(gate_up), gate_up.shape[1] // 2
        gated = gate_up.new_empty(num_rows, features)
        gate_kernel[(num_rows, triton.cdiv(features, BLOCK_FEATURES))](
            gate_up.contiguous(), gated, features, block=BLOCK_FEATURES
        )
        return gated
