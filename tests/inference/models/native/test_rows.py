"""Many rows go through the native decoder in blocks, a few by all threads together: to a row it is
all one, bit for bit, and so is which rows are beside it, with adapters and without."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from inference.models.adapter import AdapterWeights, LowRank
from inference.models.layer_configs import ExpertsConfig
from inference.models.native.adapters import AdaptedStack, NativeAdapter, native_adapter
from inference.models.native.model import NativeModel
from inference.models.native.packing import Format
from tests.cases import each_case
from tests.inference.models.dense_weights import random_weights
from tests.inference.models.native.packed_decoder import (
    CONFIG,
    FORMATS,
    HIDDEN,
    INTERMEDIATE,
    KEYS,
    NUM_LAYERS,
    QUERIES,
    TOLERANCE,
    VOCAB_SIZE,
    Sequences,
    decoder,
    relative_error,
    run,
)

SEQUENCES = [0] * 100 + [1] * 31 + list(range(2, 14)) + [14] * 20
"""Two long prompts, a few sequences that decode, and one more prompt."""
TOKEN_IDS = [(7 * i) % VOCAB_SIZE for i in range(len(SEQUENCES))]
ALL = len(SEQUENCES)
TWO = (Format.Q4, Format.Q6_K)
SHARED = ExpertsConfig(
    num_experts=6, experts_per_token=2, intermediate_size=256, shared_intermediate_size=512
)
MANY = ExpertsConfig(num_experts=70, experts_per_token=7, intermediate_size=32)
KINDS: dict[str, tuple[tuple[Format, ...], dict[str, Any]]] = {
    "dense": (TWO, {}),
    "experts": (TWO, {"experts": SHARED}),
    "floats": (TWO, {"experts": SHARED, "dequantized": True}),
    "many experts": (TWO[:1], {"experts": MANY}),
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def rows_of(library: ctypes.CDLL, kind: str, threads: int) -> Sequences:
    formats, given = KINDS[kind]
    return Sequences(decoder(library, *formats, threads=threads, **given), 15)


@pytest.fixture(scope="module")
def one_by_one(library: ctypes.CDLL, kind: str) -> torch.Tensor:
    rows = rows_of(library, kind, threads=1)
    return torch.cat([rows.rows([t], [s]) for t, s in zip(TOKEN_IDS, SEQUENCES, strict=True)])


@each_case(
    ("threads", "at_once", "times"),
    [(1, 17, 1), (1, ALL, 1), (2, ALL, 5), (3, 3, 1), (3, 17, 1), (3, ALL, 5), (10, ALL, 5)],
)
def test_a_row_is_the_same_in_every_batch(
    library: ctypes.CDLL,
    kind: str,
    one_by_one: torch.Tensor,
    threads: int,
    at_once: int,
    times: int,
) -> None:
    for _ in range(times):  # a free thread takes the next block: never the same order twice
        rows = rows_of(library, kind, threads)
        pieces = [
            rows.rows(TOKEN_IDS[at : at + at_once], SEQUENCES[at : at + at_once])
            for at in range(0, ALL, at_once)
        ]
        assert torch.equal(torch.cat(pieces), one_by_one)


def test_rows_without_logits_leave_the_others_as_they_are(
    library: ctypes.CDLL, kind: str, one_by_one: torch.Tensor
) -> None:
    for logit_rows in ([], [99], [161, 3, 130], list(range(40, 162))):
        rows = rows_of(library, kind, threads=3)
        logits = rows.rows(TOKEN_IDS[:-1], SEQUENCES[:-1], logit_rows=logit_rows)
        assert torch.equal(logits, one_by_one[logit_rows])
        assert torch.equal(rows.rows(TOKEN_IDS[-1:], SEQUENCES[-1:]), one_by_one[-1:])


def test_rows_that_see_ahead_wait_for_the_blocks_behind(library: ctypes.CDLL) -> None:
    """The rows of an image see each other."""
    tokens, last_seen = TOKEN_IDS[:100], [*range(10), *[89] * 80, *range(90, 100)]

    def logits(threads: int) -> torch.Tensor:
        native = decoder(library, Format.Q4, threads=threads)
        seen = {"last_seen": np.array(last_seen, dtype=np.int32)}
        return run(native, tokens, [0] * 100, changes=seen)

    expected = logits(1)
    assert not torch.equal(expected, run(decoder(library, Format.Q4), tokens, [0] * 100))
    for threads in [2, 3, 5] * 5:
        assert torch.equal(logits(threads), expected)


@each_case("format", FORMATS, ids=lambda format: format.name)
def test_a_row_is_the_same_in_every_format(library: ctypes.CDLL, format: Format) -> None:
    native = decoder(library, format)
    mine = [3, 14, 15, 9, 2, 6, 5]
    alone = run(native, mine, [0] * 7)
    for mates in (1, 2, 3, 4, 11, 25):
        tokens = [(7 * i) % VOCAB_SIZE for i in range(mates)] + mine
        sequences = [0] * mates + [1] * 7
        assert torch.equal(run(native, tokens, sequences)[mates:], alone)


def test_logits_that_are_kept_stay_as_they_are(library: ctypes.CDLL) -> None:
    """Those that nobody reads give their memory to the next step's."""
    native = decoder(library, Format.Q8)
    kept = run(native, [1, 2, 3], [0, 0, 1])
    row, before = kept[0], kept.clone()
    run(native, [4, 5, 6], [0, 0, 1])
    assert torch.equal(kept, before)
    del kept
    first = run(native, [7, 8, 9], [0, 0, 1]).data_ptr()
    assert torch.equal(row, before[0])
    assert run(native, [4, 5], [0, 1]).data_ptr() == first


def test_a_token_outside_the_vocabulary_stops_the_step(library: ctypes.CDLL) -> None:
    native = decoder(library, Format.Q8)
    expected = run(native, [1, 2, 3], [0, 0, 1])
    for token_id in (-1, VOCAB_SIZE, 2**31 - 1, -(2**31)):
        with pytest.raises(IndexError, match="outside the vocabulary"):
            run(native, [1, token_id, 3], [0, 0, 1])
        assert torch.equal(run(native, [1, 2, 3], [0, 0, 1]), expected)


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


@each_case("is_packed", [False, True])
def test_adapters_change_their_own_rows_alone(library: ctypes.CDLL, is_packed: bool) -> None:
    def logits(
        adapters: Sequence[NativeAdapter | None], numbers: Sequence[int], is_packed: bool
    ) -> torch.Tensor:
        """(sequences, rows, vocabulary) of prompts of five tokens by their numbers."""
        native = decoder(library, Format.Q8, dequantized=not is_packed)
        tokens = [(number * 11 + at * 7) % VOCAB_SIZE for number in numbers for at in range(5)]
        sequences = [at for at in range(len(numbers)) for _ in range(5)]
        given = {"adapters": tuple(adapters)} if any(adapters) else {}
        return run(native, tokens, sequences, **given).view(-1, 5, VOCAB_SIZE)

    first, second = (adapter(library, is_packed, seed) for seed in (3, 4))
    adapters = [first, second, None, first, first, second]
    together = logits(adapters, range(6), is_packed)
    for number, own in enumerate(adapters):
        assert torch.equal(together[number], logits([own], [number], is_packed)[0])
    base = logits([None], [0], is_packed)
    assert relative_error(together[0], base[0]) > 10 * TOLERANCE, "the adapter does something"
    if is_packed:
        floats = logits([adapter(library, is_packed=False)], [0], is_packed=False)
        assert relative_error(together[0], floats[0]) < TOLERANCE


@each_case("experts", [SHARED, MANY], ids=["shared", "many"])
def test_what_is_no_number_stays_in_its_row(library: ctypes.CDLL, experts: ExpertsConfig) -> None:
    own = {"architecture": "qwen2_moe", "mlps": ("sparse",), "num_layers": 1}
    config = replace(CONFIG, experts=experts, **own)
    weights = random_weights(config)

    def logits() -> torch.Tensor:
        native = NativeModel(library, config, weights, CONFIG.max_positions, "fp32").decoder
        return run(native, range(VOCAB_SIZE), [0] * 25 + [1] * 25)

    expected = logits()
    weights.tensors["model.embed_tokens.weight"][24, 3] = torch.nan  # the last of its sequence
    damaged = logits()
    assert damaged[24].isnan().all()
    others = [row for row in range(VOCAB_SIZE) if row != 24]
    assert torch.equal(damaged[others], expected[others])
