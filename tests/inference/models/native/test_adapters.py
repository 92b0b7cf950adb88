"""An adapter beside floats and beside codes, on the native decoder."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from inference.models.adapter import AdapterWeights, LowRank
from inference.models.native.adapters import AdaptedStack, NativeAdapter, native_adapter
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


def adapter(library: ctypes.CDLL, is_packed: bool, seed: int = 3) -> NativeAdapter:
    stacks = [[AdaptedStack(names, is_packed) for names in layer] for layer in LAYERS]
    return native_adapter(weights(seed), stacks, library)


def logits(
    library: ctypes.CDLL,
    is_packed: bool,
    adapters: Sequence[NativeAdapter | None],
    numbers: Sequence[int],
) -> torch.Tensor:
    """(sequences, rows, vocabulary) of prompts of five tokens by their numbers, each with its
    adapter."""
    native = decoder(library, Format.Q8, dequantized=not is_packed)
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


def test_codes_are_near_floats(library: ctypes.CDLL) -> None:
    def two(is_packed: bool, own: NativeAdapter | None) -> torch.Tensor:
        return logits(library, is_packed, [None, own], [0, 1])

    floats, codes = (two(is_packed, adapter(library, is_packed)) for is_packed in (False, True))
    base = two(True, None)
    assert torch.equal(codes[0], base[0]), "rows without it are as they were"
    assert (codes[1] - base[1]).norm() > 0.3 * base[1].norm(), "the adapter does something"
    assert (codes[1] - floats[1]).norm() < 0.03 * floats[1].norm()


@each_case("is_packed", [False, True])
def test_rows_are_the_same_whoever_is_beside_them(library: ctypes.CDLL, is_packed: bool) -> None:
    first, second = adapter(library, is_packed), adapter(library, is_packed, seed=4)
    adapters = [first, second, None, first, first, second]
    together = logits(library, is_packed, adapters, range(6))
    for number, own in enumerate(adapters):
        assert torch.equal(together[number], logits(library, is_packed, [own], [number])[0])
