"""An adapter beside floats and beside codes, on the native decoder."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from inference.models.adapter import AdapterWeights, LowRank
from inference.models.native.adapters import AdaptedStack, NativeAdapter, native_adapter
from inference.models.native.packing import Format
from tests.cases import each_case
from tests.inference.models.native.packed_decoder import (
    HIDDEN,
    INTERMEDIATE,
    KEYS,
    NUM_LAYERS,
    QUERIES,
    TOLERANCE,
    VOCAB_SIZE,
    decoder,
    relative_error,
    run,
)

STACKED = (
    (("q", QUERIES), ("k", KEYS), ("v", KEYS)),
    (("o", HIDDEN),),
    (("gate", INTERMEDIATE), ("up", INTERMEDIATE)),
    (("down", HIDDEN),),
    (),
)
IN_FEATURES = {"o": QUERIES, "down": INTERMEDIATE}


def adapter(library: ctypes.CDLL, is_packed: bool, seed: int = 3) -> NativeAdapter:
    generator = torch.Generator().manual_seed(seed)
    modules: dict[str, LowRank] = {}
    stacks = []
    for layer in range(NUM_LAYERS):
        names = [[(f"{layer}.{name}", size) for name, size in stack] for stack in STACKED]
        stacks.append([AdaptedStack(stack, is_packed) for stack in names])
        for name, size in (one for stack in names for one in stack):
            rank = 3 + 3 * len(modules)  # of no round number of panels
            in_features = IN_FEATURES.get(name.split(".")[1], HIDDEN)
            down = torch.randn(rank, in_features, generator=generator) * 0.05
            up = torch.randn(size, rank, generator=generator) * 0.05
            modules[name] = LowRank(down, up, scale=1.7)
    return native_adapter(AdapterWeights(modules), stacks, library)


def logits(
    library: ctypes.CDLL,
    is_packed: bool,
    adapters: Sequence[NativeAdapter | None],
    numbers: Sequence[int],
) -> torch.Tensor:
    """(sequences, rows, vocabulary) of prompts of five tokens by their numbers."""
    native = decoder(library, Format.Q8, dequantized=not is_packed)
    tokens = [(number * 11 + at * 7) % VOCAB_SIZE for number in numbers for at in range(5)]
    sequences = [at for at in range(len(numbers)) for _ in range(5)]
    return run(native, tokens, sequences, adapters=adapters).view(-1, 5, VOCAB_SIZE)


def test_codes_are_near_floats(library: ctypes.CDLL) -> None:
    def two(is_packed: bool, own: NativeAdapter | None) -> torch.Tensor:
        return logits(library, is_packed, [None, own], [0, 1])

    floats, codes = (two(is_packed, adapter(library, is_packed)) for is_packed in (False, True))
    base = two(True, None)
    assert torch.equal(codes[0], base[0]), "rows without it are as they were"
    assert relative_error(codes[1], base[1]) > 10 * TOLERANCE, "the adapter does something"
    assert relative_error(codes[1], floats[1]) < TOLERANCE


@each_case("is_packed", [False, True])
def test_rows_are_the_same_whoever_is_beside_them(library: ctypes.CDLL, is_packed: bool) -> None:
    first, second = (adapter(library, is_packed, seed) for seed in (3, 4))
    adapters = [first, second, None, first, first, second]
    together = logits(library, is_packed, adapters, range(6))
    for number, own in enumerate(adapters):
        assert torch.equal(together[number], logits(library, is_packed, [own], [number])[0])
