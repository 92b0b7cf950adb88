"""What the declarations of families must have in common."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import pytest

from inference.loading.config.hub_config import parse_config
from inference.models.families.family import Family
from inference.models.families.registry import (
    FAMILIES,
    check_architecture,
    check_gguf_architecture,
)
from inference.protocol.load_errors import BadFileError, UnknownArchitectureError
from tests.cases import each_case


def test_no_architecture_belongs_to_two_families() -> None:
    for names in ("model_types", "gguf_architectures"):
        declared = [name for family in FAMILIES for name in getattr(family, names)]
        assert declared and len(declared) == len(set(declared))


@each_case("family", FAMILIES, ids=lambda family: family.name)
def test_a_family_names_its_builder_and_reads_what_it_lists(family: Family) -> None:
    module, _, name = family.builder.partition(":")
    assert callable(getattr(import_module(module), name))
    assert bool(family.gguf_architectures) == (family.read_gguf is not None)


@each_case(
    ("check", "name", "nearest"),
    [
        (check_architecture, "lama", "llama and llama4"),
        (check_architecture, "qwen3_nxt", "qwen3_next"),
        (check_architecture, "zzz", ""),
        (check_architecture, "foo", ""),
        (check_gguf_architecture, "gemma5", "gemma and gemma3"),
    ],
)
def test_an_unknown_architecture_is_refused_with_those_that_are_spelt_like_it(
    check: Callable[[str], Family], name: str, nearest: str
) -> None:
    with pytest.raises(UnknownArchitectureError) as refused:
        check(name)
    message = str(refused.value)
    assert message.count(repr(name)) == 1 and "docs/models.md" in message
    assert len(message) < 200, "some 150 names"
    assert ("spelt nearly so" in message) == bool(nearest) and nearest in message
    assert refused.value.failure.suggestion == ""


def test_gguf_names() -> None:
    name = check_architecture("bamba").gguf_name
    assert name("output.weight") == "lm_head.weight"
    assert name("blk.12.attn_q.bias") == "model.layers.12.self_attn.q_proj.bias"
    assert name("blk.3.ssm_d") == "model.layers.3.mamba.D"
    assert name("blk.3.attn_other.weight") is None
    assert name("attn_q.weight") is None


def test_layers_of_granite_4_that_nobody_knows_are_refused_by_name() -> None:
    config = {"model_type": "granitemoehybrid", "num_hidden_layers": 2}
    config |= {"shared_intermediate_size": 32}
    with pytest.raises(BadFileError, match="layers of the type 'rwkv' are not supported"):
        parse_config(config | {"layer_types": ["rwkv", "attention"]}, {})
    with pytest.raises(BadFileError, match="layer_types lists 1 of 2 layers"):
        parse_config(config | {"layer_types": ["attention"]}, {})
