"""A decoder's layers in native code: the ``Model`` of ``registry`` over packed weights.

The same function as ``inference.models.decoder``, in one C++ call per forward instead of some
hundred torch calls. Decode rows and prompt rows take one path, so phase never changes a row's
numbers.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from inference.models.adapter import AdapterWeights
from inference.models.backend import PlainBackend
from inference.models.cache.kv_format import KVFormat
from inference.models.cache.layout import cache_layout
from inference.models.config import ATTENTION_KINDS, ModelConfig
from inference.models.layers.rope import check_positions, growth_table, rope_table
from inference.models.native.adapters import LowRankFormat, NativeAdapter, native_adapter
from inference.models.native.decoder import NativeDecoder, States
from inference.models.native.images import NativeImages, native_images
from inference.models.native.load_layer import (
    in_order_of_layers,
    load_layer,
    load_norm,
    native_angles,
    stacked_names,
)
from inference.models.native.packing import Format, pack
from inference.models.step_input import StepInput
from inference.models.vision.tower import VisionTower
from inference.models.weights.untouched import untouched_zeros
from inference.models.weights.weight_source import WeightSource


@dataclass(frozen=True, slots=True)
class NativeKV:
    """``keys`` and ``values`` (layers with attention, num_blocks, num_kv_heads, bytes of a block
    and head), in the order that element_attention.h and int8_attention.h document."""

    keys: torch.Tensor
    values: torch.Tensor
    block_tokens: int
    scratch_slot: int
    states: States | None = None
    """Of layers that keep a state instead."""

    def block(self, block_id: int) -> dict[str, torch.Tensor]:
        """Views of one block, by name."""
        return {"keys": self.keys[:, block_id], "values": self.values[:, block_id]}


class NativeModel(PlainBackend):
    dtype = torch.float32
    device = torch.device("cpu")
    copies_context = False
    has_own_threads = True

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
        kinds = (set(config.mixer_kinds) & ATTENTION_KINDS) - {"unrotated"}
        tables = {kind: rope_table(config, context_tokens, self.device, kind) for kind in kinds}
        angles = {kind: native_angles(table) for kind, table in tables.items()}
        self._rope = tables.get("attention")
        """Of a model that is given images."""
        self.tower = None if config.vision is None else VisionTower(config.vision, weights)
        self._num_positions = min(
            (table.num_positions for table in tables.values()), default=context_tokens
        )
        embedding = pack(weights.stored("model.embed_tokens"), library)
        layers = [load_layer(config, weights, i, angles, library) for i in range(config.num_layers)]
        self._is_packed = any(part.format is not Format.F32 for part in layers[0].qkv)
        self._stacked = [stacked_names(config, i) for i in range(config.num_layers)]
        self.decoder = NativeDecoder(
            library,
            config,
            layers=layers,
            final_norm=load_norm(config, weights, "model.norm"),
            embedding=embedding,
            head=embedding if config.tie_embeddings else pack(weights.stored("lm_head"), library),
            kv_format=kv_format,
            num_threads=torch.get_num_threads(),
            query_growth=growth_table(config, self._num_positions, self.device),
        )

    @property
    def sampler(self) -> NativeDecoder:
        return self.decoder

    def sleep(self) -> None:
        self.decoder.drop_scratch()

    def wake(self) -> None:
        self.decoder.make_scratch()

    def new_kv(self, num_blocks: int, block_tokens: int, num_state_slots: int = 0) -> NativeKV:
        """One block more than asked for: the last is scratch, where padding rows write."""
        assert block_tokens == self.decoder.block_tokens
        region_bytes = self.decoder.kv_region_bytes
        layout = cache_layout(self.config)
        num_layers = len(layout.attention_layers)
        shape = (num_layers, num_blocks + 1, self.config.num_kv_heads, region_bytes)
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
            states=self._new_states(len(layout.state_layers), num_state_slots),
        )

    def _new_states(self, num_layers: int, num_slots: int) -> States | None:
        shape = self.config.state
        if shape is None:
            return None
        slots = num_layers, num_slots
        shapes = (*slots, *shape.conv_shape), (*slots, *shape.recurrent_shape)
        return States(*(untouched_zeros(shape, torch.float32, self.device) for shape in shapes))

    def forward(self, step: StepInput, kv: NativeKV) -> torch.Tensor:
        """Write the rows' keys and values, return the logits of ``step.logit_rows``:
        (num_logits, vocab_size) float32. Raises ``PositionError``."""
        check_positions(step.longest_context, self._num_positions)
        return self.decoder.forward(
            step, keys=kv.keys, values=kv.values, states=kv.states, images=self._images(step)
        )

    def _images(self, step: StepInput) -> NativeImages | None:
        if step.images is None:
            return None
        assert self._rope is not None, "such models attend"
        return native_images(step.images, self._rope)

    def prepare_adapter(self, weights: AdapterWeights) -> NativeAdapter:
        """Exactly as its files hold it beside dense weights, in 8 bits beside packed ones: what it
        takes a step is reading it."""
        dtypes = {t.dtype for m in weights.modules.values() for t in (m.down, m.up)}
        format = LowRankFormat.FLOAT
        if self._is_packed:
            format = LowRankFormat.INT8
        elif dtypes == {torch.bfloat16}:
            format = LowRankFormat.BFLOAT16
        ordered = in_order_of_layers(self.config, weights)
        return native_adapter(ordered, self._stacked, format=format)
