"""A layer that predicts further tokens (multi-token prediction), on the native decoder: the same
function as ``inference.models.predictor``, beside a ``NativeModel`` whose tables it shares.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.nn.functional import rms_norm

from inference.models.cache.kv_format import kv_bytes_per_block
from inference.models.families.predictor import (
    PREDICTOR,
    PREDICTOR_HEAD,
    PREDICTOR_TABLE,
    lone_layer,
    with_layer,
)
from inference.models.native.decoder import NativeDecoder
from inference.models.native.layers import NativeJoin
from inference.models.native.load_layer import load_layer, load_norm
from inference.models.native.model import NativeModel
from inference.models.native.packer import Packer, packing
from inference.models.native.packing import PackedLinear
from inference.models.native.storage import NativeKV, new_native_kv
from inference.models.step_input import StepInput, check_positions
from inference.models.weights.weight_source import WeightSource


class NativePredictor:
    """An ``AnyPredictor``."""

    device = torch.device("cpu")

    def __init__(self, model: NativeModel, weights: WeightSource) -> None:
        """``model.config.has_predictor``. Raises ``MissingTensorError``."""
        config = model.config
        self._config = lone_layer(config)
        self._kv_format = model.kv_format
        self.num_positions = model.num_positions
        with packing(model.library, torch.get_num_threads()) as packer:

            def table(name: str, own: PackedLinear | None) -> PackedLinear | None:
                return _packed(packer, weights, name) if weights.has(f"{name}.weight") else own

            layer = load_layer(with_layer(config), weights, config.num_layers, model.angles, packer)
            product = _packed(packer, weights, f"{PREDICTOR}fc")
            embedding = table(PREDICTOR_TABLE, model.embedding)
            head = table(PREDICTOR_HEAD, model.head)
        self._final_norm = load_norm(config, weights, f"{PREDICTOR}norm").weight
        self._decoder = NativeDecoder(
            model.library,
            self._config,
            layers=[layer],
            final_norm=None,  # its rows are wanted behind the norm
            embedding=embedding,
            head=head,
            kv_format=model.kv_format,
            num_threads=torch.get_num_threads(),
            join=NativeJoin(
                embedding_norm=load_norm(config, weights, f"{PREDICTOR}pre_fc_norm_embedding"),
                hidden_norm=load_norm(config, weights, f"{PREDICTOR}pre_fc_norm_hidden"),
                product=product,
            ),
        )

    def new_kv(self, num_blocks: int, block_tokens: int) -> NativeKV:
        assert block_tokens == self._decoder.block_tokens
        return new_native_kv(self._decoder, self._config, num_blocks)

    def block_bytes(self, block_tokens: int) -> int:
        return kv_bytes_per_block(self._config, block_tokens, self._kv_format)

    def forward(self, step: StepInput, hidden: torch.Tensor, kv: NativeKV) -> torch.Tensor:
        check_positions(step.longest_context, self.num_positions)
        step = replace(step, logit_rows=None)  # all rows are wanted, as torch's operators give them
        rows = self._decoder.forward_rows(step, hidden, keys=kv.keys, values=kv.values)
        weight = self._final_norm
        return rms_norm(rows, weight.shape, weight, self._config.rms_norm_eps)

    def logits(self, normed: torch.Tensor) -> torch.Tensor:
        return self._decoder.logits(normed)

    def sleep(self) -> None:
        self._decoder.drop_scratch()

    def wake(self) -> None:
        self._decoder.make_scratch()


def _packed(packer: Packer, weights: WeightSource, name: str) -> PackedLinear:
    (part,) = weights.stored_parts(name)
    return packer.pack(part)
