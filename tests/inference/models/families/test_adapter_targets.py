"""What PEFT trains where it is to train all linear layers, and what adapters may change here."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import PreTrainedModel

from inference.loading.config.hub_config import read_directory_config
from inference.models.adapter import adaptable_shapes
from inference.models.families.registry import family_of
from tests.cases import each_case
from tests.inference.models.families import parity
from tests.inference.models.families.rows import ROWS
from tests.inference.models.families.test_hybrid import REFERENCES as HYBRIDS

REFERENCES: dict[str, Callable[[], PreTrainedModel]] = {
    **{row.model_type: lambda row=row: parity.build_reference(row) for row in ROWS},  # type: ignore[misc]
    **HYBRIDS,
}
LAYER_MLP = re.compile(r"model\.layers\.(\d+)\.mlp\.")


@each_case("name", REFERENCES)
def test_all_linear_layers_are_adapted(name: str, tmp_path: Path) -> None:
    reference = REFERENCES[name]()
    reference.config.save_pretrained(tmp_path)
    config = read_directory_config(tmp_path)
    shapes, hub_name = adaptable_shapes(config), family_of(config).hub_name
    head = reference.get_output_embeddings()
    linear = {
        module_name: tuple(module.weight.shape)
        for module_name, module in reference.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not head
    }
    assert linear
    for module_name, shape in linear.items():
        own = hub_name(f"{module_name}.weight").removesuffix(".weight")
        if own in shapes:
            assert shapes[own] == shape, module_name
        elif "model.visual." not in module_name:  # a tower is not adapted, nor are experts
            of_mlp = LAYER_MLP.match(own)
            assert of_mlp and config.mlp_kinds[int(of_mlp[1])] == "sparse", module_name
