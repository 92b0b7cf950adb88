"""Two ranks compute what one does, within rounding: every family, prompts in chunks, rows that
decode beside them, packed weights and images."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from inference.loading.weights.part_files import packing_groups, rank_files
from inference.loading.weights.quantized_files import Bits, quantize
from inference.loading.weights.tensor_files import TensorFiles
from inference.models.config import ModelConfig
from inference.models.decoder import DecoderModel
from inference.models.layer_configs import ExpertsConfig
from inference.models.layers.experts import GroupedExperts, Routes, held_routes
from inference.models.layers.step import Step
from inference.models.ranks import RankGroup, TorchRankGroup, WideNormedQKV, build_rank
from inference.models.registry import build_model
from inference.models.splits import check_groups, input_groups, rank_cuts, rank_share
from inference.models.weight_source import DenseProduct
from tests.cases import each_case
from tests.inference.models import steps
from tests.inference.models.ranks import (
    MemoryFiles,
    MemoryTensor,
    TwoRanks,
    random_tensors,
    weights_of,
)
from tests.inference.models.tiny_configs import ALL_FACTS, config_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

CONTEXT_TOKENS, BLOCK_TOKENS = 64, 8
TOLERANCE = 1e-4
"""The tolerance of log probabilities."""


@pytest.fixture(scope="module")
def ranks() -> Iterator[TwoRanks]:
    both = TwoRanks()
    yield both
    both.close()


def whole_model(config: ModelConfig, files: TensorFiles) -> DecoderModel:
    model = build_model(config, weights_of(files), CONTEXT_TOKENS, "fp32")
    assert isinstance(model, DecoderModel)
    return model


def rank_model(config: ModelConfig, files: TensorFiles, group: TorchRankGroup) -> DecoderModel:
    groups = packing_groups(files)
    together = input_groups(config, groups)
    shares = [rank_share(config, rank, 2, together) for rank in (0, 1)]
    check_groups(config, shares[group.rank], groups)
    part = rank_files(files, rank_cuts(config, shares[group.rank]))
    model, _ = build_rank(config, weights_of(part), CONTEXT_TOKENS, "fp32", group, shares)
    return model


def logits_of(model: DecoderModel, **first: Any) -> list[torch.Tensor]:
    found = steps.logits_of(model, BLOCK_TOKENS, first)
    return [torch.log_softmax(logits, dim=-1) for logits in found]


def check(ranks: TwoRanks, config: ModelConfig, files: TensorFiles) -> None:
    expected = logits_of(whole_model(config, files))
    found = ranks.run(lambda group: logits_of(rank_model(config, files, group)))
    for of_rank in found:
        torch.testing.assert_close(of_rank, expected, atol=TOLERANCE, rtol=0)
    assert expected[0].std() > 0.1, "logits that differ between tokens"


@each_case("name", ALL_FACTS)
def test_logits_are_one_ranks(ranks: TwoRanks, name: str) -> None:
    config = config_of(name)
    check(ranks, config, MemoryFiles(random_tensors(config)))


class PackedFiles(TensorFiles):
    """Holds weights in ``bits``, those of ``down_proj`` last, where groups of 32 inputs come out
    even."""

    def __init__(self, tensors: dict[str, torch.Tensor], bits: tuple[Bits, Bits]) -> None:
        with ThreadPoolExecutor(1) as threads:
            packed = {
                name: quantize(weight, bits["down_proj" in name], threads)
                for name, weight in tensors.items()
                if weight.ndim == 2 and weight.shape[1] % 32 == 0 and "_proj" in name
            }
        super().__init__(
            {name: MemoryTensor(tensor, packed.get(name)) for name, tensor in tensors.items()}
        )


@each_case("bits", [(4, 8), (6, 5)], ids=["4 and 8", "6 and 5"])
@each_case("name", ["llama", "phi3", "qwen2_moe", "qwen3_next"])
def test_packed_weights_are_cut_between_their_groups(
    ranks: TwoRanks, name: str, bits: tuple[Bits, Bits]
) -> None:
    config = config_of(name)
    files = PackedFiles(random_tensors(config), bits)
    if name != "qwen3_next":
        part = rank_files(files, rank_cuts(config, rank_share(config, 1, 2, {"inner": 32})))
        output = "model.layers.0.self_attn.o_proj.weight"
        assert part.stored(output).shape == (64, 32) == part.shape_of(output)
    check(ranks, config, files)


@each_case("name", ["qwen3_vl", "gemma3, with images"])
def test_images_take_their_rows_places_on_every_rank(ranks: TwoRanks, name: str) -> None:
    """Gemma's rows of an image see each other."""
    config = config_of(name)
    files, is_gemma = MemoryFiles(random_tensors(config)), name != "qwen3_vl"
    images = steps.images_of(config, 0 if is_gemma else 2, is_rotated=not is_gemma)
    seen = np.array([0, 1, 5, 5, 5, 5, 6, 7, 8, 9, 10], dtype=np.int32) if is_gemma else None
    expected = logits_of(whole_model(config, files), images=images, last_seen=seen)
    other = logits_of(whole_model(config, files), images=images if is_gemma else None)
    found = ranks.run(
        lambda group: logits_of(rank_model(config, files, group), images=images, last_seen=seen)
    )
    torch.testing.assert_close(found[0], expected, atol=TOLERANCE, rtol=0)
    assert (expected[0] - other[0]).abs().max() > 0.01


def test_grouped_experts_leave_out_what_others_hold() -> None:
    generator = torch.Generator().manual_seed(5)
    gate_up = torch.randn(4, 32, 16, generator=generator, dtype=torch.bfloat16)
    down = torch.randn(4, 16, 16, generator=generator, dtype=torch.bfloat16)
    biases = torch.randn(4, 32, generator=generator), torch.randn(4, 16, generator=generator)
    x = torch.randn(6, 16, generator=generator, dtype=torch.bfloat16)
    routes = Routes(
        torch.tensor([[0, 3], [1, 2], [2, 3], [0, 1], [3, 0], [1, 3]]), torch.rand(6, 2)
    )
    config = ExpertsConfig(num_experts=4, experts_per_token=2, intermediate_size=16)
    experts = GroupedExperts(config, DenseProduct(gate_up), DenseProduct(down), biases)
    whole = experts.decode(x, routes)
    parts = []
    for first, last in ((0, 3), (3, 4)):
        share = replace(config, held=(first, last))
        products = (DenseProduct(weights[first:last]) for weights in (gate_up, down))
        held = GroupedExperts(share, *products, (biases[0][first:last], biases[1][first:last]))
        parts.append(held.decode(x, held_routes(share, routes)))
    torch.testing.assert_close(parts[0] + parts[1], whole, atol=0.3, rtol=0.05)


class CountingGroup:
    """Two ranks of which this is one; the other's part is the same."""

    rank, num_ranks = 0, 2

    def __init__(self) -> None:
        self.summed_rows: list[int] = []

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        self.summed_rows.append(len(part))
        return 2 * part


@each_case("is_split", [False, True], ids=["on cards", "on processors"])
def test_ranks_make_as_many_sums_whatever_kernels_they_chose(is_split: bool) -> None:
    config = config_of("olmo2")
    norm = torch.ones(config.num_heads * config.head_dim // 2)
    rows = torch.rand(6, 3 * len(norm))
    mixed: Any = SimpleNamespace(_num_decode_rows=1, _is_mixed=True, _is_split=is_split)
    groups = [CountingGroup(), CountingGroup()]
    products = []
    for group, is_phaseless in zip(groups, (True, False), strict=True):
        # A projection that changes nothing, whose kernels each rank chose by its own times.
        own = {"is_phaseless": is_phaseless, "decode": lambda x: x, "prefill": lambda x: x}
        own |= {"in_features": rows.shape[1], "out_features": rows.shape[1]}
        mixer: Any = SimpleNamespace(query_norm=norm, key_norm=norm, qkv=SimpleNamespace(**own))
        qkv = WideNormedQKV(mixer, config, cast(RankGroup, group))
        products.append(Step._product(mixed, qkv, rows))
    assert groups[0].summed_rows == groups[1].summed_rows
    assert torch.equal(*products)
