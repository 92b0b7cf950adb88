"""A decoder's layers in native code, and its layer that predicts further tokens: the same functions
as ``inference.models.decoder`` and ``inference.models.predictor``. Decode rows and prompt rows take
one path, so phase never changes a row's numbers."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import torch
from torch.nn.functional import rms_norm

from inference.models.adapter import AdapterWeights
from inference.models.backend import PlainBackend, Predictor
from inference.models.config import ATTENTION_KINDS, ModelConfig
from inference.models.families.decoder_tensors import (
    PREDICTOR,
    PREDICTOR_HEAD,
    PREDICTOR_TABLE,
    lone_predictor_layer,
    with_predictor_layer,
)
from inference.models.kv_format import KVFormat, cache_layout
from inference.models.layers.rope import growth_table, rope_table
from inference.models.native.adapters import NativeAdapter, native_adapter
from inference.models.native.decoder import (
    NativeDecoder,
    NativeKV,
    States,
    native_images,
)
from inference.models.native.load_layer import (
    adapted_stacks,
    in_order_of_layers,
    load_layer,
    load_norm,
    native_angles,
)
from inference.models.native.packing import PackedLinear, Packer, packing
from inference.models.native.structs import CJoin, Part
from inference.models.paged_kv import lazy_zeros
from inference.models.step_input import StepInput, check_positions
from inference.models.vision_tower import build_tower
from inference.models.weight_source import WeightSource

CPU = torch.device("cpu")


def new_native_kv(
    decoder: NativeDecoder, config: ModelConfig, num_blocks: int, num_state_slots: int = 0
) -> NativeKV:
    """Allocates also the scratch block that placement counts."""
    layout = cache_layout(config)
    num_layers = len(layout.attention_layers)
    shape = (num_layers, num_blocks + 1, config.num_kv_heads, decoder.kv_region_bytes)
    # Small pages keep memory down, and slow long contexts of the wider formats down as well
    # (decision 14).
    huge_pages = decoder.kv_format != "int8"
    # Latents are not kept twice.
    shapes = shape, shape if config.kv_vectors == 2 else (*shape[:-1], 0)
    keys, values = (lazy_zeros(each, torch.uint8, CPU, huge_pages=huge_pages) for each in shapes)
    return NativeKV(
        keys=keys,
        values=values,
        block_tokens=decoder.block_tokens,
        states=_new_states(config, len(layout.state_layers), num_state_slots),
    )


def _new_states(config: ModelConfig, num_layers: int, num_slots: int) -> States | None:
    shape = config.state
    if shape is None:
        return None
    slots = num_layers, num_slots
    shapes = (*slots, *shape.conv_shape), (*slots, *shape.recurrent_shape)
    return States(*(lazy_zeros(shape, torch.float32, CPU) for shape in shapes))


class NativeModel(PlainBackend):
    dtype = torch.float32
    device = CPU
    copies_context = False
    has_own_threads = True

    def __init__(
        self,
        library: ctypes.CDLL,
        config: ModelConfig,
        weights: WeightSource,
        context_tokens: int,
        kv_format: KVFormat,
        *,
        has_outer: bool = True,
    ) -> None:
        """``has_outer``: ``False`` of a later stage, which has no tables, last norm and tower."""
        self.config = config
        self.kv_format = kv_format
        kinds = (set(config.mixer_kinds) & ATTENTION_KINDS) - {"unrotated"}
        tables = {kind: rope_table(config, context_tokens, self.device, kind) for kind in kinds}
        self.library = library
        self.angles = {kind: native_angles(table) for kind, table in tables.items()}
        self._rope = tables.get("attention")
        self.tower = build_tower(config.vision, weights) if has_outer else None
        self.num_positions = min(
            (table.num_positions for table in tables.values()), default=context_tokens
        )
        with packing(library, torch.get_num_threads()) as packer:

            def table(name: str) -> PackedLinear | None:
                return _packed(packer, weights, name) if has_outer else None

            self.embedding = self.head = table("model.embed_tokens")
            indices = range(config.num_layers)
            layers = [load_layer(config, weights, i, self.angles, packer) for i in indices]
            if not config.tie_embeddings:
                self.head = table("lm_head")
        self._final_norm = load_norm(config, weights, "model.norm") if has_outer else None
        self._adapted_stacks = adapted_stacks(config, layers)
        self.decoder = NativeDecoder(
            library,
            config,
            layers=layers,
            final_norm=self._final_norm,
            embedding=self.embedding,
            head=self.head,
            kv_format=kv_format,
            num_threads=torch.get_num_threads(),
            query_growth=growth_table(config, self.num_positions, self.device),
        )

    @property
    def sampler(self) -> NativeDecoder:
        return self.decoder

    def sleep(self) -> None:
        self.decoder.drop_scratch()

    def wake(self) -> None:
        self.decoder.make_scratch()

    def new_kv(self, num_blocks: int, block_tokens: int, num_state_slots: int = 0) -> NativeKV:
        assert block_tokens == self.decoder.block_tokens
        return new_native_kv(self.decoder, self.config, num_blocks, num_state_slots)

    def forward(self, step: StepInput, kv: NativeKV) -> torch.Tensor:
        """Returns float32 logits (num_logits, vocab_size). Raises ``PositionError``."""
        check_positions(step.longest_context, self.num_positions)
        return self.decoder.forward(step, kv, self._images(step))

    def forward_rows(
        self, step: StepInput, hidden: torch.Tensor | None, kv: NativeKV
    ) -> torch.Tensor:
        check_positions(step.longest_context, self.num_positions)
        return self.decoder.forward_rows(step, hidden, kv, self._images(step))

    def forward_with_hidden(
        self, step: StepInput, kv: NativeKV
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """All rows go through the whole last layer; their logits stay the same."""
        rows = self.forward_rows(replace(step, logit_rows=None), None, kv)
        wanted = rows
        if step.logit_rows is not None:
            wanted = rows.index_select(0, torch.from_numpy(step.logit_rows))
        assert self._final_norm is not None, "the last norm is this model's"
        weight = weight_of(self._final_norm)
        hidden = rms_norm(rows, weight.shape, weight, self.config.rms_norm_eps)
        return self.decoder.logits(wanted), hidden

    def head_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.decoder.logits(hidden)

    def _images(self, step: StepInput) -> ctypes.Structure | None:
        if step.images is None:
            return None
        return native_images(step.images, len(step.positions), self._rope)

    def prepare_adapter(self, weights: AdapterWeights) -> NativeAdapter:
        """As its files hold it beside dense weights, in 8 bits beside packed ones."""
        ordered = in_order_of_layers(self.config, weights)
        return native_adapter(ordered, self._adapted_stacks, self.library)


class NativePredictor(Predictor):
    device = CPU

    def __init__(self, model: NativeModel, weights: WeightSource) -> None:
        """Raises ``MissingTensorError``."""
        config = model.config
        self.config = lone_predictor_layer(config)
        self.kv_format = model.kv_format
        self.num_positions = model.num_positions
        with packing(model.library, torch.get_num_threads()) as packer:

            def table(name: str, own: PackedLinear | None) -> PackedLinear | None:
                return _packed(packer, weights, name) if weights.has(f"{name}.weight") else own

            layer = load_layer(
                with_predictor_layer(config), weights, config.num_layers, model.angles, packer
            )
            product = _packed(packer, weights, f"{PREDICTOR}fc")
            embedding = table(PREDICTOR_TABLE, model.embedding)
            head = table(PREDICTOR_HEAD, model.head)
        self._final_norm = weight_of(load_norm(config, weights, f"{PREDICTOR}norm"))
        self._decoder = NativeDecoder(
            model.library,
            self.config,
            layers=[layer],
            final_norm=None,  # its rows are wanted behind the norm
            embedding=embedding,
            head=head,
            kv_format=model.kv_format,
            num_threads=torch.get_num_threads(),
            join=Part(
                CJoin,
                {"product": (config.hidden_size, 2 * config.hidden_size)},
                embedding=load_norm(config, weights, f"{PREDICTOR}pre_fc_norm_embedding"),
                hidden=load_norm(config, weights, f"{PREDICTOR}pre_fc_norm_hidden"),
                product=product,
            ),
        )

    def new_kv(self, num_blocks: int, block_tokens: int) -> NativeKV:
        assert block_tokens == self._decoder.block_tokens
        return new_native_kv(self._decoder, self.config, num_blocks)

    def forward(self, step: StepInput, hidden: torch.Tensor, kv: NativeKV) -> torch.Tensor:
        check_positions(step.longest_context, self.num_positions)
        step = replace(step, logit_rows=None)  # all rows are wanted, as torch's operators give them
        rows = self._decoder.forward_rows(step, hidden, kv)
        weight = self._final_norm
        return rms_norm(rows, weight.shape, weight, self.config.rms_norm_eps)

    def logits(self, normed: torch.Tensor) -> torch.Tensor:
        return self._decoder.logits(normed)

    def sleep(self) -> None:
        self._decoder.drop_scratch()

    def wake(self) -> None:
        self._decoder.make_scratch()


def weight_of(norm: Part) -> torch.Tensor:
    weight = norm.given["weight"]
    assert isinstance(weight, torch.Tensor)
    return weight


def _packed(packer: Packer, weights: WeightSource, name: str) -> PackedLinear:
    (part,) = weights.stored_parts(name)
    return packer.pack(part)
