"""The llama family on the native decoder: the ``Model`` of ``registry`` over packed weights.

The same function as ``inference.models.llama``, in one C++ call per forward instead of some hundred
torch calls. Decode rows and prompt rows take one path, so phase never changes a row's numbers.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from inference.models.batch import DecodeBatch, PrefillBatch
from inference.models.config import ModelConfig
from inference.models.kv_format import KVFormat
from inference.models.native.decoder import NativeDecoder
from inference.models.native.experts import load_experts
from inference.models.native.layers import NativeLayer
from inference.models.native.packing import pack
from inference.models.native.structs import Projection
from inference.models.paged_kv import untouched_zeros
from inference.models.rope import check_positions, rope_table
from inference.models.weights import WeightSource


@dataclass(frozen=True, slots=True)
class NativeKV:
    """``keys`` and ``values`` (num_layers, num_blocks, num_kv_heads, bytes of a block and head), in
    the order that element_attention.h and int8_attention.h document."""

    keys: torch.Tensor
    values: torch.Tensor
    block_tokens: int
    scratch_slot: int


class NativeLlama:
    dtype = torch.float32
    device = torch.device("cpu")
    copies_context = False

    def __init__(
        self,
        library: ctypes.CDLL,
        config: ModelConfig,
        weights: WeightSource,
        context_tokens: int,
        kv_format: KVFormat,
    ) -> None:
        self.config = config
        self.kv_format = kv_format
        angles, half = rope_table(config, context_tokens, self.device), config.head_dim // 2
        self._num_positions = angles.num_positions
        embedding = pack(weights.stored("model.embed_tokens"))
        self.decoder = NativeDecoder(
            library,
            config,
            layers=[_load_layer(config, weights, i) for i in range(config.num_layers)],
            final_norm=_float(weights, "model.norm.weight"),
            embedding=embedding,
            head=embedding if config.tie_embeddings else pack(weights.stored("lm_head")),
            cosines=angles.cosines[:, :half].contiguous(),
            sines=angles.sines[:, half:].contiguous(),
            kv_format=kv_format,
            num_threads=torch.get_num_threads(),
        )

    def new_kv(self, num_blocks: int, block_tokens: int) -> NativeKV:
        """One block more than asked for: the last is scratch, where padding rows write."""
        assert block_tokens == self.decoder.block_tokens
        region_bytes = self.decoder.kv_region_bytes
        shape = (self.config.num_layers, num_blocks + 1, self.config.num_kv_heads, region_bytes)
        # Small pages keep memory down, and slow long contexts of the wider formats down as well:
        # ``benchmarks.engine.kv_pages``.
        huge_pages = self.kv_format != "int8"
        keys, values = (
            untouched_zeros(shape, torch.uint8, self.device, huge_pages=huge_pages)
            for _ in range(2)
        )
        return NativeKV(
            keys=keys,
            values=values,
            block_tokens=block_tokens,
            scratch_slot=num_blocks * block_tokens,
        )

    def decode(self, batch: DecodeBatch, kv: NativeKV) -> torch.Tensor:
        """Write the rows' keys and values, return their logits: (num_rows, vocab_size) float32.
        Raises ``PositionError``."""
        check_positions(batch.end(kv.block_tokens), self._num_positions)
        rows = torch.arange(batch.token_ids.shape[0])
        return self.decoder.forward(
            token_ids=batch.token_ids,
            positions=batch.positions,
            sequences=rows,
            block_tables=batch.block_ids.contiguous(),
            logit_rows=rows,
            keys=kv.keys,
            values=kv.values,
        )

    def prefill(self, batch: PrefillBatch, kv: NativeKV) -> torch.Tensor:
        """Write all rows' keys and values, return ``logit_rows``' logits:
        (num_logit_rows, vocab_size) float32. Raises ``PositionError``."""
        check_positions(batch.end, self._num_positions)
        lengths = torch.tensor([span.last_row - span.first_row for span in batch.spans])
        tables = torch.nn.utils.rnn.pad_sequence(
            [span.block_ids for span in batch.spans], batch_first=True
        )
        return self.decoder.forward(
            token_ids=batch.token_ids,
            positions=batch.positions,
            sequences=torch.arange(len(batch.spans)).repeat_interleave(lengths),
            block_tables=tables,
            logit_rows=batch.logit_rows,
            keys=kv.keys,
            values=kv.values,
        )


def _load_layer(config: ModelConfig, weights: WeightSource, index: int) -> NativeLayer:
    prefix = f"model.layers.{index}"
    heads = f"{prefix}.self_attn"

    def projection(*names: str) -> Projection:
        return [pack(stored) for stored in weights.stored_parts(*names)]

    is_sparse = config.mlp_kinds[index] == "sparse"
    return NativeLayer(
        qkv=projection(f"{heads}.q_proj", f"{heads}.k_proj", f"{heads}.v_proj"),
        output=projection(f"{heads}.o_proj"),
        gate_up=() if is_sparse else projection(f"{prefix}.mlp.gate_proj", f"{prefix}.mlp.up_proj"),
        down=() if is_sparse else projection(f"{prefix}.mlp.down_proj"),
        experts=load_experts(config, weights, f"{prefix}.mlp") if is_sparse else None,
        attention_norm=_float(weights, f"{prefix}.input_layernorm.weight"),
        mlp_norm=_float(weights, f"{prefix}.post_attention_layernorm.weight"),
        query_norm=_float(weights, f"{heads}.q_norm.weight") if config.qk_norm else None,
        key_norm=_float(weights, f"{heads}.k_norm.weight") if config.qk_norm else None,
    )


def _float(weights: WeightSource, name: str) -> torch.Tensor:
    return weights.tensor(name).float().contiguous()
