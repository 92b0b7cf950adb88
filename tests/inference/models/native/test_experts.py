"""The native mixture of experts beside torch's. Packed ones are in ``test_packing``, rows in
``test_rows``."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import torch
from torch.nn.functional import rms_norm

from inference.models.layer_configs import ExpertsConfig
from inference.models.layers.experts import load_mixture
from inference.models.native.layers import NativeLayer
from inference.models.native.load_layer import load_experts
from inference.models.native.packing import Packer
from tests.cases import each_case
from tests.inference.models.dense_weights import DenseWeights
from tests.inference.models.native.packed_decoder import (
    CONFIG,
    HIDDEN,
    VOCAB_SIZE,
    build,
    norm,
    pack_dense,
    run,
)

SIZES = {"num_experts": 6, "experts_per_token": 2, "intermediate_size": 256}
FINE = {"num_experts": 24, "experts_per_token": 4, "intermediate_size": 16}
MIXTURES = {
    "as they are": ExpertsConfig(**SIZES),
    "normalised": ExpertsConfig(**SIZES, normalizes=True),
    "sigmoid": ExpertsConfig(**SIZES, scoring="sigmoid", normalizes=True),
    "groups": ExpertsConfig(**FINE, scoring="sigmoid", num_groups=6, groups_per_token=3),
    "softmax of the chosen": ExpertsConfig(**SIZES, scoring="softmax_of_chosen"),
    "shared": ExpertsConfig(**SIZES, shared_intermediate_size=512),
    "shared, ungated": ExpertsConfig(**SIZES, shared_intermediate_size=256, gates_shared=False),
    "many": ExpertsConfig(num_experts=40, experts_per_token=5, intermediate_size=16),
}
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


def normed_sums(
    library: ctypes.CDLL, config: ExpertsConfig, weights: DenseWeights, table: torch.Tensor
) -> torch.Tensor:
    """A layer whose attention adds nothing, and a head of ones and zeros: logits are the normalised
    rows."""
    sparse = {"experts": config, "mlps": ("sparse",)}
    layer = NativeLayer(
        qkv=[pack_dense(torch.zeros(2 * HIDDEN, HIDDEN))],
        output=[pack_dense(torch.zeros(HIDDEN, HIDDEN))],
        input_norm=norm(),
        mlp_norm=norm(),
        experts=load_experts(replace(CONFIG, **sparse), weights, PREFIX, Packer(library)),
    )
    native = build(library, pack_dense(table), pack_dense(torch.eye(HIDDEN)), layer, **sparse)
    return run(native, range(VOCAB_SIZE), [0] * 25 + [1] * 25)


@torch.inference_mode()
@each_case("name", MIXTURES)
def test_the_sum_of_experts_is_torchs(library: ctypes.CDLL, name: str) -> None:
    """What is no number stays in its row."""
    config = MIXTURES[name]
    weights = mixture_weights(config)
    table = torch.randn(VOCAB_SIZE, HIDDEN, generator=torch.Generator().manual_seed(2))
    actual = normed_sums(library, config, weights, table)
    mlp = load_mixture(config, weights, PREFIX)
    summed = table + mlp.prefill(rms_norm(table, (HIDDEN,), eps=1e-5))
    expected = rms_norm(summed, (HIDDEN,), eps=1e-5)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    table[24, 3] = torch.nan  # the last of its sequence
    damaged = normed_sums(library, config, weights, table)
    assert damaged[24].isnan().all()
    others = [row for row in range(VOCAB_SIZE) if row != 24]
    assert torch.equal(damaged[others], actual[others])
