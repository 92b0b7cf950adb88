"""The native mixture of experts: beside torch's, in every format, and equal to the bit for a row
whatever the batch's other rows."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import rms_norm

from inference.models.layer_configs import ExpertsConfig
from inference.models.layers.experts_loading import load_mixture
from inference.models.native.decoder import NativeDecoder
from inference.models.native.layers import NativeLayer, NativeNorm
from inference.models.native.load_layer import load_experts
from inference.models.native.packer import Packer
from inference.models.native.packing import Format, pack
from inference.models.weights.stored import DenseWeight
from tests.cases import each_case
from tests.inference.models.dense_weights import DenseWeights
from tests.inference.models.native.packed_decoder import (
    CONFIG,
    HIDDEN,
    VOCAB_SIZE,
    Sequences,
    decoder,
    run,
)

SIZES = {"num_experts": 6, "experts_per_token": 2, "intermediate_size": 256}
MIXTURES = {
    "as they are": ExpertsConfig(**SIZES),
    "normalised": ExpertsConfig(**SIZES, normalizes=True),
    "sigmoid": ExpertsConfig(**SIZES, scoring="sigmoid", normalizes=True),
    "groups": ExpertsConfig(
        num_experts=24,
        experts_per_token=4,
        intermediate_size=16,
        scoring="sigmoid",
        num_groups=6,
        groups_per_token=3,
    ),
    "softmax of the chosen": ExpertsConfig(**SIZES, scoring="softmax_of_chosen"),
    "shared": ExpertsConfig(**SIZES, shared_intermediate_size=512),
    "shared, ungated": ExpertsConfig(**SIZES, shared_intermediate_size=256, gates_shared=False),
    "many": ExpertsConfig(num_experts=40, experts_per_token=5, intermediate_size=16),
}
SHARED = MIXTURES["shared"]
ALL = ExpertsConfig(
    num_experts=2, experts_per_token=2, intermediate_size=256, shared_intermediate_size=256
)
"""No rounding sends a row to other experts."""
TOLERANCE = 0.03
"""The tolerance of ``test_packing``."""
PREFIX = "model.layers.0.mlp"


def mixture_weights(config: ExpertsConfig) -> DenseWeights:
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * 0.1

    tensors = {f"{PREFIX}.gate.weight": random(config.num_experts, HIDDEN)}
    sizes = {f"experts.{i}": config.intermediate_size for i in range(config.num_experts)}
    if config.shared_intermediate_size is not None:
        sizes["shared_expert"] = config.shared_intermediate_size
        tensors[f"{PREFIX}.shared_expert_gate.weight"] = random(1, HIDDEN)
    for name, size in sizes.items():
        for part in ("gate", "up"):
            tensors[f"{PREFIX}.{name}.{part}_proj.weight"] = random(size, HIDDEN)
        tensors[f"{PREFIX}.{name}.down_proj.weight"] = random(HIDDEN, size)
    return DenseWeights(tensors, torch.float32, torch.device("cpu"))


def only_experts(
    library: ctypes.CDLL, config: ExpertsConfig, weights: DenseWeights, table: torch.Tensor
) -> NativeDecoder:
    """A layer whose attention adds nothing, and a head of ones and zeros: logits are the normalised
    rows."""
    model = replace(CONFIG, num_layers=1, experts=config, mlps=("sparse",))
    nothing = torch.zeros(HIDDEN, HIDDEN)
    layer = NativeLayer(
        qkv=[pack(DenseWeight(weight=torch.zeros(2 * HIDDEN, HIDDEN)))],
        output=[pack(DenseWeight(weight=nothing))],
        input_norm=NativeNorm(torch.ones(HIDDEN)),
        mlp_norm=NativeNorm(torch.ones(HIDDEN)),
        experts=load_experts(model, weights, PREFIX, Packer(library)),
    )
    return NativeDecoder(
        library,
        model,
        layers=[layer],
        final_norm=NativeNorm(torch.ones(HIDDEN)),
        embedding=pack(DenseWeight(weight=table)),
        head=pack(DenseWeight(weight=torch.eye(HIDDEN))),
        kv_format="fp32",
        num_threads=2,
    )


@torch.inference_mode()
@each_case("name", MIXTURES)
def test_the_sum_of_experts_is_torchs(library: ctypes.CDLL, name: str) -> None:
    config = MIXTURES[name]
    weights = mixture_weights(config)
    table = torch.randn(VOCAB_SIZE, HIDDEN, generator=torch.Generator().manual_seed(2))
    native = only_experts(library, config, weights, table)
    tokens, sequences = list(range(VOCAB_SIZE)), [0] * 25 + [1] * 25
    actual = run(native, tokens, sequences)
    native.close()
    mlp = load_mixture(config, weights, PREFIX)
    summed = table + mlp.prefill(rms_norm(table, (HIDDEN,), eps=1e-5))
    expected = rms_norm(summed, (HIDDEN,), eps=1e-5)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@each_case("format", [f for f in Format if f is not Format.F32], ids=lambda format: format.name)
def test_packed_experts_equal_their_dequantized_weights(
    library: ctypes.CDLL, format: Format
) -> None:
    tokens, sequences = list(range(20)), [0] * 20

    def logits(*, dequantized: bool) -> torch.Tensor:
        native = decoder(library, format, dequantized=dequantized, experts=ALL)
        found = run(native, tokens, sequences)
        native.close()
        return found

    expected, actual = logits(dequantized=True), logits(dequantized=False)
    error = float((actual - expected).norm() / expected.norm())
    assert 0 < error < TOLERANCE


NUM_SEQUENCES = 16
LONG = [0] * 70 + [1] * 31 + list(range(2, 15)) + [15] * 10
"""Two long prompts, some sequences that decode, and one more prompt."""
TOKEN_IDS = [(7 * i) % VOCAB_SIZE for i in range(len(LONG))]

KINDS: dict[str, Callable[[ctypes.CDLL, int], NativeDecoder]] = {
    "packed": lambda library, threads: decoder(
        library, Format.Q4, Format.Q6_K, dequantized=False, threads=threads, experts=SHARED
    ),
    "floats": lambda library, threads: decoder(
        library, Format.Q4, dequantized=True, threads=threads, experts=SHARED
    ),
    "many experts": lambda library, threads: decoder(
        library,
        Format.Q4,
        dequantized=False,
        threads=threads,
        experts=ExpertsConfig(num_experts=70, experts_per_token=7, intermediate_size=32),
    ),
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def one_by_one(library: ctypes.CDLL, kind: str) -> torch.Tensor:
    """Each row by itself, by one thread."""
    native = KINDS[kind](library, 1)
    rows = Sequences(native, NUM_SEQUENCES)
    return torch.cat([rows.run([t], [s]) for t, s in zip(TOKEN_IDS, LONG, strict=True)])


@each_case(
    ("threads", "at_once"),
    [(1, 17), (2, len(LONG)), (3, 3), (3, 17), (5, len(LONG))],
)
def test_a_row_is_the_same_in_every_batch(
    library: ctypes.CDLL, kind: str, one_by_one: torch.Tensor, threads: int, at_once: int
) -> None:
    native = KINDS[kind](library, threads)
    rows = Sequences(native, NUM_SEQUENCES)
    pieces = [
        rows.run(TOKEN_IDS[at : at + at_once], LONG[at : at + at_once])
        for at in range(0, len(LONG), at_once)
    ]
    native.close()
    assert torch.equal(torch.cat(pieces), one_by_one)


def test_what_is_not_a_number_stays_in_its_row(library: ctypes.CDLL) -> None:
    config = MIXTURES["shared"]
    table = torch.randn(VOCAB_SIZE, HIDDEN, generator=torch.Generator().manual_seed(2))
    weights = mixture_weights(config)
    tokens, sequences = list(range(20)), list(range(20))

    def rows(table: torch.Tensor) -> torch.Tensor:
        native = only_experts(library, config, weights, table)
        found = run(native, tokens, sequences)
        native.close()
        return found

    expected = rows(table)
    table[7, 3] = float("nan")
    actual = rows(table)
    assert actual[7].isnan().all()
    others = [row for row in tokens if row != 7]
    assert torch.equal(actual[others], expected[others])
