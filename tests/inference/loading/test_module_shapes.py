"""Files for modules of transformers', embedding models among them, and stacks of experts: their
shapes are compared with what the module or the format wants before weights are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from inference.protocol.load_errors import BadFileError, WrongShapeError
from tests.cases import each_case
from tests.inference.loading.conftest import edit_json, edit_tensors, opened
from tests.inference.loading.editable_gguf import EditableGGUF
from tests.inference.loading.mutations.subjects import SUBJECTS


@each_case(
    ("subject", "name", "shape", "words"),
    [
        ("bert", "embeddings.word_embeddings.weight", (63, 32), "63 x 32 and should be 64 x 32"),
        ("bert", "encoder.layer.1.output.dense.weight", (32, 63), "32 x 63 and should be 32 x 64"),
        ("a transformers module", "gpt_neox.embed_in.weight", (60, 64), "should be 64 x 64"),
        ("mxfp4", "model.layers.0.mlp.experts.down_proj_bias", (2, 64), "and should be 2 x 64"),
    ],
)
def test_a_tensor_of_another_size_is_named(
    subject: str, name: str, shape: tuple[int, ...], words: str, tmp_path: Path
) -> None:
    source = SUBJECTS[subject].save(tmp_path)
    edit_tensors(source, {name: torch.zeros(shape)})
    with pytest.raises(WrongShapeError, match=words):
        opened(source, tmp_path)


def test_a_stack_of_experts_has_three_axes(tmp_path: Path) -> None:
    file = EditableGGUF.read(SUBJECTS["qwen3moe.gguf"].save(tmp_path))
    info = next(info for info in file.infos if "ffn_down_exps" in info.name)
    info.sizes = [info.sizes[0], info.sizes[1] * info.sizes[2]]
    with pytest.raises(BadFileError, match=r"cannot be read|no stack of experts"):
        opened(file.write(tmp_path / "y.gguf"), tmp_path)


@each_case(
    ("changes", "words"),
    [
        ({"pad_token_id": 64}, "padding token 64 is outside the vocabulary of 64"),
        ({"max_position_embeddings": 0}, "max_position_embeddings is 0"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"architectures": [3]}, "cannot be read"),
        ({"num_attention_heads": 2.0}, "builds no 'bert'"),
        ({"hidden_size": 48}, "is 32 and should be 48"),
    ],
)
def test_an_embedding_models_config(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    source = SUBJECTS["bert"].save(tmp_path)
    edit_json(source / "config.json", **changes)
    with pytest.raises(BadFileError, match=words):
        opened(source, tmp_path)


def test_merges_that_merge_nothing(tiny_file: Path, tmp_path: Path) -> None:
    file = EditableGGUF.read(tiny_file)
    file.pair("tokenizer.ggml.merges").value = ["ab"]
    with pytest.raises(BadFileError, match="makes no tokenizer"):
        opened(file.write(tmp_path / "y.gguf"), tmp_path)
