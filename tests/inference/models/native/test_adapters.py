"""What an adapter's panels are kept in on the native decoder."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from inference.models.adapter import AdapterWeights, LowRank
from inference.models.native.adapters import LowRankFormat, NativeAdapter, native_adapter
from inference.models.native.decoder import NativeKV
from inference.models.native.packing import Format
from tests.cases import each_case
from tests.inference.models.native.packed_decoder import (
    BLOCK_TOKENS,
    HEAD_DIM,
    HIDDEN,
    INTERMEDIATE,
    NUM_HEADS,
    NUM_KV_HEADS,
    NUM_LAYERS,
    VOCAB_SIZE,
    decoder,
)
from tests.inference.models.steps import step_of

QUERIES, KEYS = NUM_HEADS * HEAD_DIM, NUM_KV_HEADS * HEAD_DIM
STACKED = (
    (("q", QUERIES), ("k", KEYS), ("v", KEYS)),
    (("o", HIDDEN),),
    (("gate", INTERMEDIATE), ("up", INTERMEDIATE)),
    (("down", HIDDEN),),
    (),
)
IN_FEATURES = {"o": QUERIES, "down": INTERMEDIATE}
LAYERS = [
    [[(f"{layer}.{name}", size) for name, size in names] for names in STACKED]
    for layer in range(NUM_LAYERS)
]


def weights(seed: int = 3) -> AdapterWeights:
    generator = torch.Generator().manual_seed(seed)
    modules = {}
    for number, (name, size) in enumerate(
        one for layer in LAYERS for names in layer for one in names
    ):
        rank = 3 + number  # of no round number of panels
        in_features = IN_FEATURES.get(name.split(".")[1], HIDDEN)
        down = torch.randn(rank, in_features, generator=generator) * 0.05
        up = torch.randn(size, rank, generator=generator) * 0.05
        modules[name] = LowRank(down, up, scale=1.7)
    return AdapterWeights(modules)


def adapter(format: LowRankFormat, seed: int = 3) -> NativeAdapter:
    return native_adapter(weights(seed), LAYERS, format=format)


def logits(
    library: ctypes.CDLL, adapters: Sequence[NativeAdapter | None], numbers: Sequence[int]
) -> torch.Tensor:
    """(sequences, rows, vocabulary) of prompts of five tokens by their numbers, each with its
    adapter. Weights are floats, for codes of activations would round what adapters add."""
    native = decoder(library, Format.Q4, dequantized=True)
    count = len(numbers)
    queries = [
        ([(number * 11 + position * 7) % VOCAB_SIZE for position in range(5)], 0, [block])
        for block, number in enumerate(numbers)
    ]
    shape = (NUM_LAYERS, count, NUM_KV_HEADS, HEAD_DIM * BLOCK_TOKENS)
    found = native.forward(
        step_of(
            *queries,
            block_tokens=BLOCK_TOKENS,
            adapters=tuple(adapters) if any(adapters) else None,
        ),
        NativeKV(torch.zeros(shape), torch.zeros(shape), BLOCK_TOKENS),
    )
    native.close()
    return found.view(count, 5, VOCAB_SIZE)


def test_narrower_panels_are_near_floats(library: ctypes.CDLL) -> None:
    base = logits(library, [None, None], [0, 1])
    found = {format: logits(library, [None, adapter(format)], [0, 1]) for format in LowRankFormat}
    exact = found[LowRankFormat.FLOAT][1]
    changed = (exact - base[1]).norm()
    assert changed > 1, "the adapter does something"
    for format, most in ((LowRankFormat.BFLOAT16, 0.02), (LowRankFormat.INT8, 0.05)):
        assert (found[format][1] - exact).norm() < most * changed, format
        assert torch.equal(found[format][0], base[0]), "rows without it are as they were"


@each_case("format", LowRankFormat)
def test_rows_are_the_same_whoever_is_beside_them(
    library: ctypes.CDLL, format: LowRankFormat
) -> None:
    first, second = adapter(format), adapter(format, seed=4)
    adapters = [first, second, None, first, first, second]
    together = logits(library, adapters, range(6))
    for number, own in enumerate(adapters):
        assert torch.equal(together[number], logits(library, [own], [number])[0])
