"""Facts of published models' config.json, against the shapes that transformers makes of them."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from inference.loading.config.hub_config import parse_config
from inference.models.families.registry import family_of
from inference.models.families.tower import TOWER
from tests.cases import each_case
from tests.inference.models.families import tiny_gguf

FOLDER = Path(__file__).parent / "published"
PUBLISHED = sorted(FOLDER.glob("*.json"))


def published(name: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_bytes())
    return facts


@each_case("path", PUBLISHED, ids=lambda path: path.stem)
def test_the_declared_tensors_are_the_models(path: Path) -> None:
    check_declared(json.loads(path.read_bytes()))


def check_declared(published: dict[str, Any], auto_class: Any = AutoModelForCausalLM) -> None:
    """The first layers are compared: the others are like them."""
    facts = deepcopy(published)
    facts.get("text_config", facts)["num_hidden_layers"] = 6
    config = parse_config(facts, {})
    family = family_of(config)
    declared = {tensor.name: tensor.shape for tensor in family.tensors(config)}
    model_type = facts.pop("model_type")
    with torch.device("meta"):
        reference = auto_class.from_config(AutoConfig.for_model(model_type, **facts))
    shapes = {
        family.hub_name(name): tuple(weight.shape)
        for name, weight in unfused(reference.state_dict()).items()
        if not name.startswith(tuple(family.left_out.keys() - {TOWER}))
    }
    if config.vision is None:  # transformers makes a tower all the same
        shapes = {name: shape for name, shape in shapes.items() if not name.startswith(TOWER)}
    if config.tie_embeddings:
        del shapes["lm_head.weight"]
    assert declared == shapes
    assert config.tie_embeddings == reference.config.tie_word_embeddings


def unfused(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Experts' gates and the rest apart, as files have them."""
    found = {}
    for key, value in state.items():
        if "experts." in key and f"{key.removesuffix('_bias')}_bias" in state:
            found |= interleaved(key, value)
        elif key.endswith("experts.up_proj"):
            found[f"{key}.weight"] = value
        else:
            found |= tiny_gguf.unstacked(key, value)
    return found


def interleaved(key: str, value: torch.Tensor) -> dict[str, torch.Tensor]:
    """Interleaves as gpt-oss does: inputs first, gates and the rest taking turns."""
    kind = "bias" if key.endswith("_bias") else "weight"
    turned = value if kind == "bias" else value.transpose(1, 2)
    name = key.removesuffix("_bias")
    if not name.endswith("gate_up_proj"):
        return {f"{name}.{kind}": turned}
    return {
        name.replace("gate_up_proj", f"{part}_proj.{kind}"): turned[:, first::2]
        for first, part in enumerate(("gate", "up"))
    }
