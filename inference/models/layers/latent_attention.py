"""Multi-head latent attention over paged latents, by torch's operators (DeepSeek-AI 2024,
arXiv:2405.04434, section 2.1). There are two ways to attend to latents, with the same result:

    absorbed   queries become latents' width: q · (W_k c) = (W_kᵀ q) · c, and each head makes its
               values of the weighted sum of latents
    expanded   latents become each head's keys and values first

Decode rows are absorbed: they read the kept latents alone. Prompts are expanded: a pair of tokens
then costs as much as a head is wide, not a latent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention

from inference.models.config import ModelConfig
from inference.models.device_step import DeviceStep
from inference.models.layers.attention import DecodeContext, prefill_mask
from inference.models.layers.rope import RopeTable, rotate_heads
from inference.models.paged_kv import LayerKV
from inference.models.step_input import Query, num_blocks

if TYPE_CHECKING:
    from inference.models.layers.attention_mixer import LatentMixer


class LatentAttend:
    def __init__(
        self, step: DeviceStep, config: ModelConfig, rope: RopeTable, dtype: torch.dtype
    ) -> None:
        assert config.latent is not None, "its layers are latent"
        self._shape, self._scale = config.latent, config.attention_scale
        self._eps, self._step = config.rms_norm_eps, step
        self._is_interleaved = rope.is_interleaved
        self._angles = rope.at(step.positions)
        self._decoding = DecodeContext(step, dtype)
        self._prompts = [(query, prefill_mask(query, step, dtype)) for query in step.prompts]

    def __call__(
        self,
        weights: LatentMixer,
        queries: torch.Tensor,
        compressed: torch.Tensor,
        layer_kv: LayerKV,
    ) -> torch.Tensor:
        """``queries`` (num_rows, heads, plain_dim + rotary_dim), ``compressed`` (num_rows, kv_rank
        + rotary_dim) -> (num_rows, heads * value_dim). Writes latents and rotated keys."""
        shape, eps = self._shape, self._eps
        latents, keys = torch.split(compressed, [shape.kv_rank, shape.rotary_dim], dim=-1)
        latents = rms_norm(latents, weights.latent_norm.shape, weights.latent_norm, eps)
        plain, rotary = torch.split(queries, [shape.plain_dim, shape.rotary_dim], dim=-1)
        rotary = torch.cat((rotary, keys.unsqueeze(1)), dim=1)
        rotary = rotate_heads(rotary, *self._angles, is_interleaved=self._is_interleaved)
        rotary = rotary.to(queries.dtype)
        kept = torch.cat((latents, rotary[:, -1]), dim=-1)
        layer_kv.write_vectors(self._step.slots, kept[:, None, None])
        queries = torch.cat((plain, rotary[:, :-1]), dim=-1)
        first = self._step.host.num_decode_rows
        parts = [self._decoded(queries[:first], weights.up, layer_kv)] if first else []
        for query, mask in self._prompts:
            rows = slice(query.first_row, query.last_row)
            context = self._context_of(query, kept[rows], layer_kv)
            parts.append(self._expanded(queries[rows], context, weights.up, mask))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _context_of(self, query: Query, own: torch.Tensor, layer_kv: LayerKV) -> torch.Tensor:
        """(num_context, kv_rank + rotary_dim). From blocks where those hold tokens rounded: what a
        row sees must not depend on how a prompt was cut."""
        if query.start == 0 and layer_kv.entries.dtype == own.dtype:
            return own
        size = self._step.host.block_tokens
        held = self._step.block_table[query.sequence][: num_blocks(query.end, size)]
        return layer_kv.gather(held, size, own.dtype)[: query.end].flatten(1)

    def _expanded(
        self,
        queries: torch.Tensor,
        context: torch.Tensor,
        up: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        shape, num_heads = self._shape, queries.shape[1]
        latents, rotary = torch.split(context, [shape.kv_rank, shape.rotary_dim], dim=-1)
        of_heads = linear(latents, up.flatten(0, 1)).view(-1, num_heads, shape.up_features)
        plain, values = torch.split(of_heads, [shape.plain_dim, shape.value_dim], dim=-1)
        keys = torch.cat((plain, rotary.unsqueeze(1).expand(-1, num_heads, -1)), dim=-1)
        attended = scaled_dot_product_attention(
            queries.transpose(0, 1).unsqueeze(0),
            keys.transpose(0, 1).unsqueeze(0),
            values.transpose(0, 1).unsqueeze(0),
            mask,
            is_causal=mask is None,
            scale=self._scale,
        )
        return attended.squeeze(0).transpose(0, 1).flatten(1)

    def _decoded(self, queries: torch.Tensor, up: torch.Tensor, layer_kv: LayerKV) -> torch.Tensor:
        shape = self._shape
        plain, rotary = torch.split(queries, [shape.plain_dim, shape.rotary_dim], dim=-1)
        to_keys, to_values = torch.split(up, [shape.plain_dim, shape.value_dim], dim=1)
        absorbed = torch.cat((torch.einsum("nhp,hpr->nhr", plain, to_keys), rotary), dim=-1)

        def attend(rows: slice, context: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            latents = context.view(len(context), 1, -1, absorbed.shape[-1])
            attended = scaled_dot_product_attention(
                absorbed[rows].unsqueeze(1),
                latents,
                latents[..., : shape.kv_rank],
                mask,
                scale=self._scale,
            )
            return attended.squeeze(1)

        weighed = self._decoding.attended(layer_kv, attend)
        return torch.einsum("nhr,hvr->nhv", weighed, to_values).flatten(1)
