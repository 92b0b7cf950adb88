"""A small decoder of random packed weights, and what runs rows through it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import torch

from inference.loading.weights.tensor_files import FileTensor, TensorFiles
from inference.models.families.registry import family_of
from inference.models.layer_configs import ExpertsConfig
from inference.models.native.decoder import NativeDecoder, NativeKV
from inference.models.native.model import NativeModel
from inference.models.native.packing import Format, PackedLinear, pack
from inference.models.native.structs import Part, norm_part
from inference.models.stored_weights import DenseWeight, StoredWeight
from tests.inference.models import steps
from tests.inference.models.dense_weights import TINY
from tests.inference.models.ranks import MemoryTensor, weights_of
from tests.inference.models.steps import BLOCKS_EACH
from tests.inference.models.stored_weights import stored_as

HIDDEN, INTERMEDIATE, VOCAB_SIZE, HEAD_DIM = 256, 512, 50, 64
NUM_HEADS, NUM_KV_HEADS, NUM_LAYERS, BLOCK_TOKENS = 4, 2, 2, 32
QUERIES, KEYS = NUM_HEADS * HEAD_DIM, NUM_KV_HEADS * HEAD_DIM
CONFIG = replace(
    TINY,
    vocab_size=VOCAB_SIZE,
    hidden_size=HIDDEN,
    intermediate_size=INTERMEDIATE,
    head_dim=HEAD_DIM,
)
TOLERANCE = 0.03
"""Relative error of the logits after two layers of evenly spread activations, nearly all of whose
groups are coarse: rounded to 2**-8 of their largest."""
FORMATS = [format for format in Format if format is not Format.F32]


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


def dense(stored: StoredWeight) -> DenseWeight:
    return DenseWeight(weight=stored.dequantize())


def pack_dense(weight: torch.Tensor) -> PackedLinear:
    return pack(DenseWeight(weight=weight))


def build(
    library: ctypes.CDLL,
    embedding: PackedLinear,
    head: PackedLinear,
    *layers: Part,
    threads: int = 2,
    given: dict[str, Any] | None = None,
    **changes: Any,
) -> NativeDecoder:
    """``changes`` of the config; ``given`` to the decoder."""
    config = replace(CONFIG, **({"num_layers": len(layers)} | changes))
    parts = {
        "final_norm": norm_part(config.hidden_size, torch.ones(config.hidden_size)),
        "embedding": embedding,
        "head": head,
    }
    own = {"layers": layers, "kv_format": "fp32", "num_threads": threads} | parts | (given or {})
    return NativeDecoder(library, config, **own)


PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def decoder(
    library: ctypes.CDLL,
    *formats: Format,
    dequantized: bool = False,
    threads: int = 2,
    experts: ExpertsConfig | None = None,
) -> NativeDecoder:
    """Projections take the formats in turns. With ``experts`` the first layer is sparse; its router
    is of floats."""
    sparse: dict[str, Any] = {"architecture": "qwen2_moe", "mlps": ("sparse", "dense")}
    config = replace(CONFIG, tie_embeddings=True, experts=experts, **(sparse if experts else {}))
    generator, files = torch.Generator().manual_seed(500), dict[str, FileTensor]()
    for tensor in family_of(config).tensors(config):
        if len(tensor.shape) == 1:
            files[tensor.name] = MemoryTensor(torch.ones(tensor.shape))
        elif tensor.name.endswith("gate.weight"):
            router = torch.randn(tensor.shape, generator=generator) * 0.1
            files[tensor.name] = MemoryTensor(router)
        else:
            for name in tensor.parts or [tensor.name]:
                turn = next((i for i, own in enumerate(PROJECTIONS) if own in name), 0)
                format = formats[(turn + 7 * ("layers.1." in name)) % len(formats)]
                stored = stored_as(format, *tensor.shape[-2:], seed=len(files))
                files[name] = MemoryTensor(stored.dequantize(), None if dequantized else stored)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    given = weights_of(TensorFiles(files)), CONFIG.max_positions, "fp32"
    native = NativeModel(library, config, *given).decoder
    torch.set_num_threads(before)
    return native


class Sequences(steps.Sequences):
    """Of a decoder without a model around it."""

    def __init__(self, native: NativeDecoder, num_sequences: int) -> None:
        shape = NUM_LAYERS, num_sequences * BLOCKS_EACH, NUM_KV_HEADS, HEAD_DIM * BLOCK_TOKENS
        kv = NativeKV(torch.zeros(shape), torch.zeros(shape), BLOCK_TOKENS)
        super().__init__(native, num_sequences, BLOCK_TOKENS, kv)

    def rows(
        self, token_ids: Sequence[int], sequences: Sequence[int], **given: Any
    ) -> torch.Tensor:
        """All rows at once, each the next token of its sequence."""
        alike = groupby(zip(sequences, token_ids, strict=True), key=itemgetter(0))
        spans = [(sequence, [token for _, token in rows]) for sequence, rows in alike]
        return self.run(spans, **{"state_slots": None} | given)


def run(
    native: NativeDecoder, token_ids: Sequence[int], sequences: Sequence[int], **given: Any
) -> torch.Tensor:
    """All rows at once as prompts from position 0; the logits of every row."""
    return Sequences(native, max(sequences) + 1).rows(token_ids, sequences, **given)
