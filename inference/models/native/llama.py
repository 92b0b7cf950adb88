"""Llama's layers on the native decoder: the ``Model`` of ``registry`` over packed weights.

The same function as ``inference.models.decoder``, in one C++ call per forward instead of some
hundred torch calls. Decode rows and prompt rows take one path, so phase never changes a row's
numbers.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from inference.models.adapter import AdapterWeights
from inference.models.adapter_targets import adaptable_shapes
from inference.models.batch import Batch
from inference.models.config import ModelConfig
from inference.models.families.registry import family_of
from inference.models.kv_format import KVFormat
from inference.models.native.adapters import NativeAdapter, native_adapter
from inference.models.native.decoder import NativeDecoder
from inference.models.native.experts import load_experts
from inference.models.native.layers import NativeLayer
from inference.models.native.packing import Format, pack
from inference.models.native.structs import Projection
from inference.models.rope import check_positions, rope_table
from inference.models.untouched import untouched_zeros
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
        layers = [_load_layer(config, weights, i) for i in range(config.num_layers)]
        self._is_packed = any(part.format is not Format.F32 for part in layers[0].qkv)
        self._stacked = [_stacked_names(config, i) for i in range(config.num_layers)]
        self.decoder = NativeDecoder(
            library,
            config,
            layers=layers,
            final_norm=_float(weights, "model.norm.weight"),
            embedding=embedding,
            head=embedding if config.tie_embeddings else pack(weights.stored("lm_head")),
            cosines=angles.cosines[:, :half].contiguous(),
            sines=angles.sines[:, half:].contiguous(),
            kv_format=kv_format,
            num_threads=torch.get_num_threads(),
        )

    def new_kv(self, num_blocks: int, block_tokens: int, num_state_slots: int = 0) -> NativeKV:
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

    def forward(self, batch: Batch, kv: NativeKV) -> torch.Tensor:
        """Write the rows' keys and values, return the logits of ``batch.logit_rows``:
        (num_logit_rows, vocab_size) float32. Raises ``PositionError``."""
        check_positions(batch.end(kv.block_tokens), self._num_positions)
        rows = torch.arange(batch.token_ids.shape[0])
        return self.decoder.forward(
            token_ids=batch.token_ids,
            positions=batch.positions,
            sequences=_sequences(batch) if batch.spans else rows,
            block_tables=_block_tables(batch) if batch.spans else batch.decode_blocks.contiguous(),
            logit_rows=rows if batch.logit_rows is None else batch.logit_rows,
            keys=kv.keys,
            values=kv.values,
            adapters=batch.adapters,
        )

    def prepare_adapter(self, weights: AdapterWeights) -> NativeAdapter:
        dtypes = {module.down.dtype for module in weights.modules.values()}
        is_narrow = self._is_packed or dtypes == {torch.bfloat16}
        return native_adapter(weights, self._stacked, is_narrow=is_narrow)


def _sequences(batch: Batch) -> torch.Tensor:
    """(num_rows,) numbers of the sequences that rows belong to: those that decode, then spans."""
    lengths = [1] * batch.num_decodes
    lengths += [span.last_row - span.first_row for span in batch.spans]
    return torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))


def _block_tables(batch: Batch) -> torch.Tensor:
    """(num_sequences, n) in the same order, filled up with zeros."""
    tables = [span.block_ids for span in batch.spans]
    if batch.block_ids is not None:
        tables = [*batch.block_ids.unbind(), *tables]
    return torch.nn.utils.rnn.pad_sequence(tables, batch_first=True)


def _load_layer(config: ModelConfig, weights: WeightSource, index: int) -> NativeLayer:
    names, prefix = family_of(config).layer_names, f"model.layers.{index}."

    def projection(*inner_names: str) -> Projection:
        stacked = weights.stored_parts(*(prefix + name for name in inner_names))
        return [pack(stored) for stored in stacked]

    def norm(name: str) -> torch.Tensor:
        return _float(weights, f"{prefix}{name}.weight")

    is_sparse = config.mlp_kinds[index] == "sparse"
    assert names.input_norm is not None and names.mlp_norm is not None
    return NativeLayer(
        qkv=projection(*names.qkv),
        output=projection(names.output),
        gate_up=() if is_sparse else projection(*names.gate_up),
        down=() if is_sparse else projection(names.down),
        experts=load_experts(config, weights, f"{prefix}mlp") if is_sparse else None,
        attention_norm=norm(names.input_norm),
        mlp_norm=norm(names.mlp_norm),
        query_norm=norm(names.query_norm) if config.qk_norm else None,
        key_norm=norm(names.key_norm) if config.qk_norm else None,
    )


def _stacked_names(config: ModelConfig, index: int) -> list[list[tuple[str, int]]]:
    """Of a layer's qkv, output, gate_up and down: the weights that each stacks, and how many
    outputs each has. Of those alone that adapters may change."""
    names, prefix = family_of(config).layer_names, f"model.layers.{index}."
    shapes = adaptable_shapes(config)
    stacked = names.qkv, (names.output,), names.gate_up, (names.down,)
    return [
        [(prefix + name, shapes[prefix + name][0]) for name in inner if prefix + name in shapes]
        for inner in stacked
    ]


def _float(weights: WeightSource, name: str) -> torch.Tensor:
    return weights.tensor(name).float().contiguous()
