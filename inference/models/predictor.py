"""Predicts the token after the next, by a layer that some models bring (multi-token prediction).

embedding of token i + 1 ─▶ norm ─┐
                                  ├─▶ fc ─▶ layer ─▶ norm ─▶ head: what token i + 2 may be
what the head read at i ──▶ norm ─┘                   │
                                                      └─▶ stands for the head's input at i + 1
"""

from __future__ import annotations

import torch

from inference.models.backend import AnyModel, Predictor
from inference.models.decoder import DecoderModel, Rows, finished, load_layer
from inference.models.device_step import DeviceStep
from inference.models.families.decoder_tensors import (
    PREDICTOR,
    PREDICTOR_HEAD,
    PREDICTOR_TABLE,
    lone_predictor_layer,
    with_predictor_layer,
)
from inference.models.graphed import GraphedDecoder
from inference.models.layers.norms import load_norm
from inference.models.paged_kv import PagedKV
from inference.models.step_input import StepInput
from inference.models.weight_source import WeightSource


class TorchPredictor(Predictor):
    def __init__(self, model: AnyModel, weights: WeightSource) -> None:
        """Needs ``model.config.has_predictor``. Raises ``MissingTensorError``."""
        model = model.decoder if isinstance(model, GraphedDecoder) else model
        assert isinstance(model, DecoderModel), "only torch's operators give hidden rows"
        config = model.config
        self._model = model
        self.config = lone_predictor_layer(config)
        self.device, self.kv_format = model.device, model.kv_format
        self.num_positions = model.operators.num_positions
        self._fc = weights.linear(f"{PREDICTOR}fc")
        self._embedding_norm, self._hidden_norm, self._final_norm = (
            load_norm(config, weights, PREDICTOR + name)
            for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        )
        self._layer = load_layer(with_predictor_layer(config), weights, config.num_layers)
        self._embedding, self._head = model.embedding, model.head
        if weights.has(f"{PREDICTOR_TABLE}.weight"):
            self._embedding = weights.embedding(PREDICTOR_TABLE)
        if weights.has(f"{PREDICTOR_HEAD}.weight"):
            self._head = weights.linear(PREDICTOR_HEAD)

    def new_kv(self, num_blocks: int, block_tokens: int) -> PagedKV:
        return PagedKV(self.config, num_blocks, block_tokens, self.kv_format, self.device)

    def forward(self, step: StepInput, hidden: torch.Tensor, kv: PagedKV) -> torch.Tensor:
        on_device = DeviceStep.of(step, self.device)
        shared = self._model.operators.step(on_device)
        embedded = self._embedding.lookup(on_device.token_ids)
        _, embedded = self._embedding_norm(embedded, None, shared.pointwise)
        _, hidden = self._hidden_norm(hidden, None, shared.pointwise)
        rows = Rows(shared.product(self._fc, torch.cat((embedded, hidden), dim=-1)))
        rows = self._layer(rows, shared, kv.layers[0])
        _, normed = rows.norm(self._final_norm, shared.pointwise)
        return normed

    def logits(self, normed: torch.Tensor) -> torch.Tensor:
        return finished(self.config, self._head.decode(normed).float())
