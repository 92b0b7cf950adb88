"""What each rank holds, by numbers alone; and two ranks compute what one does, within rounding:
every family, prompts in chunks, rows that decode beside them, packed weights and images."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from inference.loading.weights.part_files import packing_groups, rank_files
from inference.loading.weights.quantized_files import Bits, quantize
from inference.loading.weights.tensor_files import TensorFiles
from inference.models.config import ModelConfig
from inference.models.decoder import DecoderModel
from inference.models.errors import UnsplittableError
from inference.models.families.registry import family_of
from inference.models.layer_configs import ExpertsConfig
from inference.models.layers.experts import GroupedExperts, Routes, held_routes
from inference.models.layers.step import Step
from inference.models.ranks import TorchRankGroup, WideNormedQKV, build_rank
from inference.models.registry import build_model
from inference.models.splits import check_groups, input_groups, rank_config, rank_cuts, rank_share
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
from tests.inference.models.tiny_configs import ALL_FACTS, config_of, missing_families

pytestmark = pytest.mark.usefixtures("one_thread")
slow = pytest.mark.slow

CONTEXT_TOKENS, BLOCK_TOKENS = 64, 8
TOLERANCE = 1e-4
"""The tolerance of log probabilities."""


@pytest.fixture(scope="module")
def ranks() -> Iterator[TwoRanks]:
    both = TwoRanks()
    yield both
    both.close()


def whole_model(config: ModelConfig, files: TensorFiles) -> DecoderModel:
    return build_model(config, weights_of(files), CONTEXT_TOKENS, "fp32")


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


@slow
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


@slow
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
        assert part[output].stored().shape == (64, 32) == part[output].shape
    check(ranks, config, files)


@slow
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


@each_case("is_split", [False, True], ids=["on cards", "on processors"])
def test_ranks_make_as_many_sums_whatever_kernels_they_chose(is_split: bool) -> None:
    """Of two ranks this is one; the other's part is the same."""
    config = config_of("olmo2")
    norm = torch.ones(config.num_heads * config.head_dim // 2)
    rows = torch.rand(6, 3 * len(norm))
    mixed: Any = SimpleNamespace(_num_decode_rows=1, _is_mixed=True, _is_split=is_split)
    summed_rows: list[list[int]] = [[], []]
    products = []
    for summed, is_phaseless in zip(summed_rows, (True, False), strict=True):

        def double(part: torch.Tensor, summed: list[int] = summed) -> torch.Tensor:
            summed.append(len(part))
            return 2 * part

        # A projection that changes nothing, whose kernels each rank chose by its own times.
        own = {"is_phaseless": is_phaseless, "decode": lambda x: x, "prefill": lambda x: x}
        own |= {"in_features": rows.shape[1], "out_features": rows.shape[1]}
        mixer: Any = SimpleNamespace(query_norm=norm, key_norm=norm, qkv=SimpleNamespace(**own))
        group: Any = SimpleNamespace(rank=0, num_ranks=2, sum=double)
        products.append(Step._product(mixed, WideNormedQKV(mixer, config, group), rows))
    assert summed_rows[0] == summed_rows[1]
    assert torch.equal(*products)


SPLIT_ROLES = {"embedding", "head", "column", "row", "experts"}


@each_case("name", ALL_FACTS)
def test_two_ranks_have_everything_once(name: str) -> None:
    """A rank's cuts are what its own config declares."""
    config = config_of(name)
    shares = [rank_share(config, rank, 2) for rank in (0, 1)]
    cuts = [rank_cuts(config, share) for share in shares]
    assert not cuts[0].absent & cuts[1].absent
    assert not cuts[0].zeroed, "one rank adds biases"
    whole = {tensor.name: tensor for tensor in family_of(config).tensors(config)}
    for tensor in whole.values():
        axis = 1 if tensor.role == "row" else 0
        assert bool(tensor.sections) or tensor.role not in SPLIT_ROLES, tensor
        if tensor.sections:
            assert sum(s.features for s in tensor.sections) == tensor.shape[axis], tensor
        if tensor.parts and tensor.sections:
            held = [set(tensor.parts) - own.absent for own in cuts]
            assert held[0] | held[1] == set(tensor.parts) and not held[0] & held[1]
        elif tensor.sections:
            taken = [
                feature
                for own in cuts
                for begin, end in own.cuts[tensor.name].ranges
                for feature in range(begin, end)
            ]
            repeats = any(s.kind == "kv_heads" and s.count < 2 for s in tensor.sections)
            assert len(taken) == len(set(taken)) or repeats, tensor.name
            size = tensor.shape[cuts[0].cuts[tensor.name].axis]
            assert set(taken) == set(range(size)), tensor.name
    for share, own_cuts in zip(shares, cuts, strict=True):
        own = rank_config(config, share)
        for tensor in family_of(own).tensors(own):
            if tensor.parts or tensor.role in ("embedding", "head"):
                continue
            shape = list(whole[tensor.name].shape)
            if cut := own_cuts.cuts.get(tensor.name):
                shape[cut.axis] = cut.length
            assert tuple(shape) == tensor.shape, tensor.name


def test_stacked_weights_are_cut_part_by_part() -> None:
    config = config_of("phi3")
    cuts = rank_cuts(config, rank_share(config, 1, 2)).cuts
    q, k = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    found = cuts["model.layers.0.self_attn.qkv_proj.weight"].ranges
    assert found == ((q // 2, q), (q + k // 2, q + k), (q + k + k // 2, q + 2 * k))
    inner = config.intermediate_size
    found = cuts["model.layers.0.mlp.gate_up_proj.weight"].ranges
    assert found == ((inner // 2, inner), (inner + inner // 2, 2 * inner))
    config = config_of("qwen3_5")
    tiled = replace(config, delta=replace(config.delta, are_value_heads_tiled=True))
    cut = rank_cuts(tiled, rank_share(tiled, 1, 2)).cuts["model.layers.0.linear_attn.dt_bias"]
    assert cut.ranges == ((1, 2), (3, 4)), "value heads 1 and 3 belong to key head 1"


def test_heads_of_keys_go_where_their_queries_are() -> None:
    for num_ranks, kv_heads in ((2, 1), (4, 2), (4, 4)):
        config = config_of("llama", num_attention_heads=8, num_key_value_heads=kv_heads)
        for rank in range(num_ranks):
            units = rank_share(config, rank, num_ranks).units
            needed = {head * kv_heads // 8 for head in range(*units["heads"])}
            assert set(range(*units["kv_heads"])) == needed


HEADS = {"num_attention_heads": 12}
EIGHT = {"num_attention_heads": 8, "num_key_value_heads": 8}


@each_case(
    ("name", "changes", "num_ranks", "message"),
    [
        ("llama", {}, 3, "3 ranks cannot share 4 attention heads evenly; .* to one of 2, 4, or 1"),
        ("llama", HEADS | {"num_key_value_heads": 6}, 4, "neither share nor repeat 6 heads"),
        ("qwen3_next", {}, 4, "cannot share 2 key heads of recurrent layers"),
        ("mixtral", EIGHT, 8, "8 ranks cannot share 5 experts"),
        ("bamba", {"attn_layer_indices": [1]}, 2, "Mamba-2 layer.*not split; .* to 1$"),
        ("llama", {}, 65, "65 ranks are not between 1 and 64"),
    ],
)
def test_what_does_not_come_out_even_is_refused(
    name: str, changes: dict[str, Any], num_ranks: int, message: str
) -> None:
    with pytest.raises(UnsplittableError, match=message):
        rank_share(config_of(name, **changes), 0, num_ranks)


def test_packed_inputs_are_cut_between_groups_and_modules_of_transformers_not_at_all() -> None:
    assert missing_families() == set()
    module = replace(config_of("llama"), architecture="stablelm")
    with pytest.raises(UnsplittableError, match="stablelm is computed by the transformers backend"):
        rank_share(module, 0, 2)
    config, down = config_of("llama"), "model.layers.0.mlp.down_proj.weight"
    groups = input_groups(config, {down: 32})
    assert groups["inner"] == 32
    shares = [rank_share(config, rank, 2, groups) for rank in (0, 1)]
    assert [share.units["inner"] for share in shares] == [(0, 64), (64, 96)]
    for share in shares:
        check_groups(config, share, {down: 32})
    output = "model.layers.1.self_attn.o_proj.weight"
    with pytest.raises(UnsplittableError, match=r"layers\.1\.self_attn\.o_proj\.weight is packed"):
        check_groups(config, rank_share(config, 1, 2), {output: 64})
    with pytest.raises(UnsplittableError, match=r"cannot share 96 features .* groups of 64"):
        rank_share(config, 0, 2, {"inner": 64})
