"""A small decoder of random packed weights, and what runs rows through it."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from itertools import groupby
from operator import itemgetter

import torch

from inference.models.layer_configs import ExpertsConfig
from inference.models.native.decoder import NativeDecoder, NativeKV
from inference.models.native.layers import Angles, NativeExperts, NativeLayer, NativeNorm
from inference.models.native.packing import Format, PackedLinear, pack
from inference.models.weights.stored import DenseWeight, StoredWeight
from tests.inference.models.dense_weights import TINY
from tests.inference.models.steps import step_of
from tests.inference.models.stored_weights import stored_as

HIDDEN, INTERMEDIATE, VOCAB_SIZE, HEAD_DIM = 256, 512, 50, 64
NUM_HEADS, NUM_KV_HEADS, NUM_LAYERS, BLOCK_TOKENS = 4, 2, 2, 32
CONFIG = replace(
    TINY,
    vocab_size=VOCAB_SIZE,
    hidden_size=HIDDEN,
    intermediate_size=INTERMEDIATE,
    head_dim=HEAD_DIM,
)


def dense(stored: StoredWeight) -> DenseWeight:
    assert not isinstance(stored, DenseWeight)
    return DenseWeight(weight=stored.dequantize())


def decoder(
    library: ctypes.CDLL,
    *formats: Format,
    dequantized: bool,
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
        num_scores = config.num_experts
        if config.shared_intermediate_size is not None:
            sizes.append(config.shared_intermediate_size)
            num_scores += config.gates_shared
        generator = torch.Generator().manual_seed(500)
        router = torch.randn(num_scores, HIDDEN, generator=generator) * 0.1
        return NativeExperts(
            config=config,
            router=pack(DenseWeight(weight=router)),
            gate_up=[
                [packed(size, HIDDEN, 600 + 2 * i + part, part + 1) for part in (0, 1)]
                for i, size in enumerate(sizes)
            ],
            down=[[packed(HIDDEN, size, 800 + i, 3)] for i, size in enumerate(sizes)],
        )

    query_width, kv_width = NUM_HEADS * HEAD_DIM, NUM_KV_HEADS * HEAD_DIM
    turns = torch.outer(
        torch.arange(float(CONFIG.max_positions)), 10_000 ** (-torch.arange(0, 1, 2 / HEAD_DIM))
    )
    angles = Angles(turns.cos().contiguous(), turns.sin().contiguous())
    layers = [
        NativeLayer(
            qkv=[
                packed(width, HIDDEN, 7 * i + part)
                for part, width in enumerate((query_width, kv_width, kv_width))
            ],
            output=[packed(HIDDEN, query_width, 7 * i + 3)],
            gate_up=[packed(INTERMEDIATE, HIDDEN, 7 * i + part) for part in (4, 5)],
            down=[packed(HIDDEN, INTERMEDIATE, 7 * i + 6)],
            input_norm=NativeNorm(torch.ones(HIDDEN)),
            mlp_norm=NativeNorm(torch.ones(HIDDEN)),
            angles=angles,
            experts=mixture(experts) if experts is not None and i == 0 else None,
        )
        for i in range(NUM_LAYERS)
    ]
    embedding = packed(VOCAB_SIZE, HIDDEN, 99)
    return NativeDecoder(
        library,
        replace(CONFIG, experts=experts, mlps=("sparse", "dense") if experts else ()),
        layers=layers,
        final_norm=NativeNorm(torch.ones(HIDDEN)),
        embedding=embedding,
        head=embedding,
        kv_format="fp32",
        num_threads=threads,
    )


class Sequences:
    """Keys and values of some sequences, and how far each has come."""

    def __init__(self, native: NativeDecoder, num_sequences: int) -> None:
        self._native = native
        self._lengths = [0] * num_sequences
        self._blocks_each = CONFIG.max_positions // BLOCK_TOKENS
        num_blocks = num_sequences * self._blocks_each
        shape = (NUM_LAYERS, num_blocks, NUM_KV_HEADS, HEAD_DIM * BLOCK_TOKENS)
        self.kv = NativeKV(torch.zeros(shape), torch.zeros(shape), BLOCK_TOKENS)

    def run(
        self, token_ids: list[int], sequences: list[int], logit_rows: list[int] | None = None
    ) -> torch.Tensor:
        """All rows at once, each the next token of its sequence; the logits of ``logit_rows``, or
        of every row."""
        positions = []
        for sequence in sequences:
            positions.append(self._lengths[sequence])
            self._lengths[sequence] += 1
        queries = [
            ([token_ids[row] for row in rows], positions[rows[0]], self._blocks(sequence))
            for sequence, rows in _rows_of(sequences)
        ]
        step = step_of(*queries, block_tokens=BLOCK_TOKENS, logit_rows=logit_rows)
        return self._native.forward(step, self.kv)

    def _blocks(self, sequence: int) -> range:
        return range(sequence * self._blocks_each, (sequence + 1) * self._blocks_each)


def _rows_of(sequences: list[int]) -> list[tuple[int, list[int]]]:
    """Returns the rows of each sequence, which follow one another."""
    groups = groupby(enumerate(sequences), key=itemgetter(1))
    return [(sequence, [row for row, _ in rows]) for sequence, rows in groups]


def run(native: NativeDecoder, token_ids: list[int], sequences: list[int]) -> torch.Tensor:
    """All rows at once as prompts from position 0; the logits of every row."""
    return Sequences(native, max(sequences) + 1).run(token_ids, sequences)
