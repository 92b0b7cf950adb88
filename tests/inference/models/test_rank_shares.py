"""What each rank holds, by numbers alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inference.models.errors import UnsplittableError
from inference.models.families.registry import family_of
from inference.models.splits import (
    check_groups,
    input_groups,
    rank_config,
    rank_cuts,
    rank_share,
)
from tests.cases import each_case
from tests.inference.models.tiny_configs import ALL_FACTS, config_of, missing_families

SPLIT_ROLES = {"embedding", "head", "column", "row", "experts"}


def test_every_family_is_among_the_configs() -> None:
    assert missing_families() == set()


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
    assert config.delta is not None
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


def test_a_module_of_transformers_is_refused() -> None:
    config = replace(config_of("llama"), architecture="stablelm")
    assert family_of(config).uses_transformers
    with pytest.raises(UnsplittableError, match="stablelm is computed by the transformers backend"):
        rank_share(config, 0, 2)


def test_packed_inputs_are_cut_between_groups() -> None:
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
