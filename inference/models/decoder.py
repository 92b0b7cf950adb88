"""The decoder, written once, over a step of decode rows and prompts.

    hidden ─▶ norm ─▶ mixer ─▶ (norm) ─▶ + ─▶ norm ─▶ mlp ─▶ (norm) ─▶ +

What differs between families is declared in ``ModelConfig`` and in the family's ``LayerNames``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn.functional import gelu, silu

from inference.models.adapter import AdapterWeights, TorchAdapter, adaptable_shapes, torch_adapter
from inference.models.backend import PlainBackend
from inference.models.config import Activation, MixerKind, MlpKind, ModelConfig
from inference.models.device_step import DeviceStep
from inference.models.families.registry import family_of
from inference.models.kv_format import KVFormat
from inference.models.layers.attention_mixer import load_attention, load_latent
from inference.models.layers.delta_net import load_delta
from inference.models.layers.experts import load_sparse_mlp
from inference.models.layers.mamba import load_mamba
from inference.models.layers.norms import Norm, Pointwise, load_norm, squared_relu
from inference.models.layers.short_conv import load_short_conv
from inference.models.layers.step import Operators, Step
from inference.models.paged_kv import PagedKV
from inference.models.step_input import ImageEmbeddings, StepInput, check_positions
from inference.models.vision_tower import build_tower
from inference.models.weight_source import ForwardedWeights, Linear, WeightSource

ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": partial(gelu, approximate="tanh"),
    "relu2": squared_relu,
}


@dataclass(frozen=True, slots=True)
class DenseMlp:
    gate_up: Linear
    down: Linear
    activation: Activation
    is_gated: bool

    def __call__(self, rows: torch.Tensor, step: Step) -> torch.Tensor:
        return step.product(self.down, self._activate(step.product(self.gate_up, rows), step))

    def _activate(self, gate_up: torch.Tensor, step: Step) -> torch.Tensor:
        if not self.is_gated:
            return ACTIVATIONS[self.activation](gate_up)
        if self.activation == "silu":
            return step.pointwise.gate(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        return ACTIVATIONS[self.activation](gate) * up


def load_dense_mlp(config: ModelConfig, weights: WeightSource, index: int) -> DenseMlp:
    names, prefix = family_of(config).layer_names, f"model.layers.{index}."
    return DenseMlp(
        gate_up=weights.linear(*(prefix + name for name in names.gate_up)),
        down=weights.linear(prefix + names.down),
        activation=config.activation,
        is_gated=config.is_gated,
    )


Mixer = Callable[[torch.Tensor, Step, Any], torch.Tensor]
"""Of normed rows (num_rows, hidden_size) and the layer's cache; the output has their shape."""
Mlp = Callable[[torch.Tensor, Step], torch.Tensor]

MIXERS: dict[MixerKind, Callable[[ModelConfig, WeightSource, int], Mixer]] = {
    "attention": load_attention,
    "sliding": load_attention,
    "chunked": load_attention,
    "unrotated": load_attention,
    "latent": load_latent,
    "delta": load_delta,
    "conv": load_short_conv,
    "mamba": load_mamba,
}
MLPS: dict[MlpKind, Callable[[ModelConfig, WeightSource, int], Mlp]] = {
    "dense": load_dense_mlp,
    "sparse": load_sparse_mlp,
}


@dataclass(frozen=True, slots=True)
class Rows:
    """``hidden`` (rows, features). The next norm adds ``added``, a residual, in its kernel."""

    hidden: torch.Tensor
    added: torch.Tensor | None = None

    def norm(self, norm: Norm, pointwise: Pointwise) -> tuple[torch.Tensor, torch.Tensor]:
        return norm(self.hidden, self.added, pointwise)

    def sum(self) -> torch.Tensor:
        return self.hidden if self.added is None else self.hidden + self.added

    def select(self, rows: torch.Tensor) -> Rows:
        added = None if self.added is None else self.added.index_select(0, rows)
        return Rows(self.hidden.index_select(0, rows), added)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayer:
    """``None`` as a mixer or an MLP: the layer has the other alone, behind ``input_norm``."""

    input_norm: Norm
    mixer: Mixer | None
    mixed_norm: Norm | None
    mlp_norm: Norm
    mlp: Mlp | None
    mlp_added_norm: Norm | None
    is_parallel: bool
    residual_multiplier: float

    def __call__(self, rows: Rows, step: Step, layer_cache: Any) -> Rows:
        hidden, normed = rows.norm(self.input_norm, step.pointwise)
        if self.mixer is not None:
            mixed = self._added(self.mixer(normed, step, layer_cache), self.mixed_norm, step)
            if self.mlp is None:
                return Rows(hidden, mixed)
            if self.is_parallel:
                return Rows(hidden, mixed + self._added(self.mlp(normed, step), None, step))
            hidden, normed = Rows(hidden, mixed).norm(self.mlp_norm, step.pointwise)
        assert self.mlp is not None, "a layer has one of the two"
        return Rows(hidden, self._added(self.mlp(normed, step), self.mlp_added_norm, step))

    def _added(self, added: torch.Tensor, norm: Norm | None, step: Step) -> torch.Tensor:
        if norm is not None:
            _, added = norm(added, None, step.pointwise)
        return added if self.residual_multiplier == 1.0 else added * self.residual_multiplier


def load_layer(config: ModelConfig, weights: WeightSource, index: int) -> DecoderLayer:
    names, prefix = family_of(config).layer_names, f"model.layers.{index}."
    mixer, mlp = config.mixer_kinds[index], config.mlp_kinds[index]

    def norm(name: str | None) -> Norm | None:
        return None if name is None else load_norm(config, weights, prefix + name)

    return DecoderLayer(
        input_norm=norm(names.input_norm) or Norm(),
        mixer=None if mixer == "none" else MIXERS[mixer](config, weights, index),
        mixed_norm=norm(names.mixed_norm),
        mlp_norm=Norm() if "none" in (mixer, mlp) else norm(names.mlp_norm) or Norm(),
        mlp=None if mlp == "none" else MLPS[mlp](config, weights, index),
        mlp_added_norm=norm(names.mlp_added_norm),
        is_parallel=config.is_parallel,
        residual_multiplier=config.residual_multiplier,
    )


class DecoderLayers(PlainBackend):
    def __init__(
        self, config: ModelConfig, weights: WeightSource, context_tokens: int, kv_format: KVFormat
    ) -> None:
        named = ForwardedWeights(weights)
        self.config = config
        self.dtype = weights.activation_dtype
        self.device = weights.device
        self.kv_format = kv_format
        self.operators = Operators(config, context_tokens, self.device, self.dtype)
        self.layers = [load_layer(config, named, i) for i in range(config.num_layers)]
        self._stacked = _adaptable(config, named)

    @property
    def copies_context(self) -> bool:
        return self.operators.copies_context

    def new_kv(self, num_blocks: int, block_tokens: int, num_state_slots: int = 0) -> PagedKV:
        return PagedKV(
            self.config, num_blocks, block_tokens, self.kv_format, self.device, num_state_slots
        )

    def prepare_adapter(self, weights: AdapterWeights) -> TorchAdapter:
        return torch_adapter(weights, self._stacked, self.device, self.dtype)

    def forward_rows(
        self, step: StepInput, hidden: torch.Tensor | None, kv: PagedKV
    ) -> torch.Tensor:
        """Writes keys and values, returns ``step.logit_rows``' (num_logits, hidden_size) on the
        device, in ``dtype``. ``hidden`` (num_rows, hidden_size) is earlier layers', there too.
        Raises ``PositionError``."""
        assert hidden is not None, "there is no table of tokens"
        return self._rows_behind(Rows(hidden), DeviceStep.of(step, self.device), kv)

    def _rows_behind(self, rows: Rows, step: DeviceStep, kv: PagedKV) -> torch.Tensor:
        rows, _ = self._through_layers(rows, step, kv)
        if step.logit_rows is not None:
            rows = rows.select(step.logit_rows)
        return rows.sum()

    def _through_layers(self, rows: Rows, step: DeviceStep, kv: PagedKV) -> tuple[Rows, Step]:
        check_positions(step.host.longest_context, self.operators.num_positions)
        shared, images = self.operators.step(step), step.images
        for index, (layer, layer_cache) in enumerate(zip(self.layers, kv.layers, strict=True)):
            rows = layer(rows, shared, layer_cache)
            if images is not None and images.rows is not None:
                rows = _with_deepstack(rows, index, images.row_ids, images.rows)
        return rows, shared


class DecoderModel(DecoderLayers):
    def __init__(
        self, config: ModelConfig, weights: WeightSource, context_tokens: int, kv_format: KVFormat
    ) -> None:
        self.embedding = weights.embedding("model.embed_tokens")
        super().__init__(config, weights, context_tokens, kv_format)
        self._final_norm = load_norm(config, weights, "model.norm")
        self.tower = build_tower(config.vision, weights)
        self.head = (
            self.embedding.as_linear() if config.tie_embeddings else weights.linear("lm_head")
        )

    def forward(self, step: StepInput, kv: PagedKV) -> torch.Tensor:
        on_device = DeviceStep.of(step, self.device)
        rows, shared = self._through_layers(self._embedded(on_device), on_device, kv)
        if on_device.logit_rows is not None:
            rows = rows.select(on_device.logit_rows)
        _, normed = rows.norm(self._final_norm, shared.pointwise)
        return self.logits(normed)

    def forward_with_hidden(
        self, step: StepInput, kv: PagedKV
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.forward_on_device(DeviceStep.of(step, self.device), kv)

    def forward_on_device(self, step: DeviceStep, kv: PagedKV) -> tuple[torch.Tensor, torch.Tensor]:
        rows, shared = self._through_layers(self._embedded(step), step, kv)
        _, normed = rows.norm(self._final_norm, shared.pointwise)
        chosen = step.logit_rows
        wanted = normed if chosen is None else normed.index_select(0, chosen)
        return self.logits(wanted), normed

    def forward_rows(
        self, step: StepInput, hidden: torch.Tensor | None, kv: PagedKV
    ) -> torch.Tensor:
        """``hidden`` ``None``: the step's tokens are embedded."""
        if hidden is not None:
            return super().forward_rows(step, hidden, kv)
        on_device = DeviceStep.of(step, self.device)
        return self._rows_behind(self._embedded(on_device), on_device, kv)

    def head_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(num_rows, hidden_size) behind the last layer -> (num_rows, vocab_size) float32."""
        _, normed = self._final_norm(hidden, None, self.operators.pointwise)
        return self.logits(normed)

    def logits(self, normed: torch.Tensor) -> torch.Tensor:
        """(num_rows, hidden_size), normed -> (num_rows, vocab_size) float32."""
        return finished(self.config, self.head.decode(normed).float())

    def _embedded(self, step: DeviceStep) -> Rows:
        rows = embedded(self.config, self.embedding.lookup(step.token_ids))
        images = step.images
        if images is None or images.rows is None:
            return rows
        return Rows(rows.hidden.index_copy(0, images.row_ids, images.rows.embeddings))


def _adaptable(
    config: ModelConfig, weights: ForwardedWeights
) -> dict[int, tuple[tuple[str, int], ...]]:
    """By a projection's ``id`` the name and the number of outputs of each weight that it stacks."""
    shapes = adaptable_shapes(config)
    return {
        key: tuple((name, shapes[name][0]) for name in names)
        for key, names in weights.names.items()
        if all(name in shapes for name in names)
    }


def _with_deepstack(rows: Rows, index: int, row_ids: torch.Tensor, images: ImageEmbeddings) -> Rows:
    if index >= len(images.deepstack):
        return rows
    return Rows(rows.hidden.index_add(0, row_ids, images.deepstack[index]), rows.added)


def embedded(config: ModelConfig, hidden: torch.Tensor) -> Rows:
    multiplier = config.embedding_multiplier
    if multiplier != 1.0:
        # Rounded first, as the reference does: sqrt(hidden_size) is not a number of bfloat16.
        hidden = hidden * float(torch.tensor(multiplier, dtype=hidden.dtype))
    return Rows(hidden)


def finished(config: ModelConfig, logits: torch.Tensor) -> torch.Tensor:
    if config.logit_multiplier != 1.0:
        logits = logits * config.logit_multiplier
    cap = config.logit_soft_cap
    return logits if cap is None else torch.tanh(logits / cap) * cap
