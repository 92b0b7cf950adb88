"""A small decoder of random packed weights, and what runs rows through it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import torch

from inference.models.layer_configs import ExpertsConfig
from inference.models.native.decoder import NativeDecoder, NativeKV
from inference.models.native.layers import Angles, NativeExperts, NativeLayer, NativeNorm
from inference.models.native.packing import Format, PackedLinear, pack
from inference.models.stored_weights import DenseWeight, StoredWeight
from tests.inference.models import steps
from tests.inference.models.dense_weights import TINY
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
    assert not isinstance(stored, DenseWeight)
    return DenseWeight(weight=stored.dequantize())


def pack_dense(weight: torch.Tensor) -> PackedLinear:
    return pack(DenseWeight(weight=weight))


def norm(size: int = HIDDEN) -> NativeNorm:
    return NativeNorm(torch.ones(size))


def build(
    library: ctypes.CDLL,
    embedding: PackedLinear,
    head: PackedLinear,
    *layers: NativeLayer,
    threads: int = 2,
    given: dict[str, Any] | None = None,
    **changes: Any,
) -> NativeDecoder:
    """``changes`` of the config; ``given`` to the decoder."""
    config = replace(CONFIG, **({"num_layers": len(layers)} | changes))
    parts = {"final_norm": norm(config.hidden_size), "embedding": embedding, "head": head}
    own = {"layers": layers, "kv_format": "fp32", "num_threads": threads} | parts | (given or {})
    return NativeDecoder(library, config, **own)


def decoder(
    library: ctypes.CDLL,
    *formats: Format,
    dequantized: bool = False,
    threads: int = 2,
    experts: ExpertsConfig | None = None,
) -> NativeDecoder:
    """Parts of projections take the formats in turns. With ``experts`` the first layer is sparse;
    its router is of floats."""

    def packed(out_features: int, in_features: int, seed: int, turn: int = 0) -> PackedLinear:
        format = formats[(turn or seed) % len(formats)]
        stored = stored_as(format, out_features, in_features, seed)
        return pack(dense(stored) if dequantized else stored, library)

    def mixture(config: ExpertsConfig) -> NativeExperts:
        sizes = [config.intermediate_size] * config.num_experts
        if config.shared_intermediate_size is not None:
            sizes.append(config.shared_intermediate_size)
        generator = torch.Generator().manual_seed(500)
        num_scores = len(sizes) if config.gates_shared else config.num_experts
        gate_up = [
            [packed(size, HIDDEN, 600 + 2 * i + part, part + 1) for part in (0, 1)]
            for i, size in enumerate(sizes)
        ]
        return NativeExperts(
            config=config,
            router=pack_dense(torch.randn(num_scores, HIDDEN, generator=generator) * 0.1),
            gate_up=gate_up,
            down=[[packed(HIDDEN, size, 800 + i, 3)] for i, size in enumerate(sizes)],
        )

    turns = torch.outer(
        torch.arange(float(CONFIG.max_positions)), 10_000 ** (-torch.arange(0, 1, 2 / HEAD_DIM))
    )
    layers = [
        NativeLayer(
            qkv=[packed(width, HIDDEN, 7 * i + n) for n, width in enumerate((QUERIES, KEYS, KEYS))],
            output=[packed(HIDDEN, QUERIES, 7 * i + 3)],
            gate_up=[packed(INTERMEDIATE, HIDDEN, 7 * i + part) for part in (4, 5)],
            down=[packed(HIDDEN, INTERMEDIATE, 7 * i + 6)],
            input_norm=norm(),
            mlp_norm=norm(),
            angles=Angles(turns.cos().contiguous(), turns.sin().contiguous()),
            experts=mixture(experts) if experts is not None and i == 0 else None,
        )
        for i in range(NUM_LAYERS)
    ]
    table = packed(VOCAB_SIZE, HIDDEN, 99)
    mlps = ("sparse", "dense") if experts else ()
    return build(library, table, table, *layers, threads=threads, experts=experts, mlps=mlps)


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
