"""Hunyuan's own keys of config.json: a stretched rotary base, and numbers listed by layer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inference.loading.config.hub_config import parse_config
from inference.protocol.load_errors import BadFileError
from tests.cases import each_case

PUBLISHED = Path(__file__).parent / "published"
ALPHA = 1000.0


def facts(name: str = "hunyuan-a13b") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((PUBLISHED / f"{name}.json").read_bytes())
    return found


@each_case("name", ["hunyuan-7b", "hunyuan-a13b"])
def test_alpha_stretches_the_rotary_base(name: str) -> None:
    config = parse_config(facts(name), {})
    assert config.rope_theta == pytest.approx(10_000.0 * ALPHA ** (128 / 126))
    assert config.rope_scaling is None


def test_a_rule_that_follows_the_length_is_refused() -> None:
    rope = {"type": "dynamic", "factor": 4.0}
    with pytest.raises(BadFileError, match="rope scaling 'dynamic' is not supported"):
        parse_config(facts() | {"rope_scaling": rope}, {})


@each_case("alpha", [-1.0, True, "much"])
def test_an_alpha_that_stretches_nothing_is_refused(alpha: object) -> None:
    rope = {"type": "dynamic", "alpha": alpha}
    with pytest.raises(BadFileError, match="not a number above 0"):
        parse_config(facts() | {"rope_scaling": rope}, {})


def test_experts_of_their_own_width_beside_shared_ones() -> None:
    changes = {"moe_intermediate_size": 1536, "num_shared_expert": 2}
    experts = parse_config(facts() | changes, {}).experts
    assert experts is not None
    assert (experts.intermediate_size, experts.shared_intermediate_size) == (1536, 2 * 3072)


@each_case("key", ["moe_topk", "num_experts", "moe_intermediate_size"])
def test_layers_that_differ_are_refused(key: str) -> None:
    with pytest.raises(BadFileError, match=f"layers that differ in {key}"):
        parse_config(facts() | {key: [8, 8, 4]}, {})


@each_case("key", ["use_cla", "use_mla", "moe_layer_num_skipped"])
def test_layers_that_are_not_built_are_refused(key: str) -> None:
    with pytest.raises(BadFileError, match=f"{key}.* not supported"):
        parse_config(facts() | {key: 1}, {})
