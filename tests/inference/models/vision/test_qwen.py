"""Qwen's models with images alone: a checkpoint in an older form, and a GGUF file without its
tower."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.inference.models.families import parity, tiny_hybrid
from tests.inference.models.families.rows import GGUFRow, Row
from tests.inference.models.vision.tiny_images import submit
from tests.inference.models.vision.tiny_qwen import QWEN2_5_VL

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_OUTPUTS = 10


def test_a_checkpoint_as_qwen2_5_vl_was_published(tmp_path: Path) -> None:
    directory = QWEN2_5_VL.save(tmp_path / "model")
    path = directory / "config.json"
    config = json.loads(path.read_bytes())
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    flat = {
        "rope_theta": rope["rope_theta"],
        "rope_scaling": {"type": "mrope", "mrope_section": rope["mrope_section"]},
        "eos_token_id": None,
        "bos_token_id": None,
    }
    path.write_text(json.dumps(text | config | flat))
    tensors = load_file(directory / "model.safetensors")
    published = {
        name.replace("model.language_model.", "model.").replace("model.visual.", "visual."): tensor
        for name, tensor in tensors.items()
    }
    assert any(name.startswith("visual.") for name in published)
    save_file(published, directory / "model.safetensors", {"format": "pt"})
    prompt = QWEN2_5_VL.prompt(*QWEN2_5_VL.parts()["one"])
    engine = QWEN2_5_VL.engine(tiny_hybrid.on_torch(directory, tmp_path))
    submit(engine, "it", prompt, NUM_OUTPUTS)
    found, _ = tiny_hybrid.run(engine)
    assert found == {"it": QWEN2_5_VL.greedy(prompt, NUM_OUTPUTS)}


def test_gguf_of_the_text_model(tmp_path: Path) -> None:
    row = Row(model_type="qwen3", gguf=GGUFRow(architecture="qwen3vl"))
    reference = parity.build_reference(row)
    path = parity.save_gguf(row, reference, tmp_path / "model.gguf")
    parity.check_source(reference, path, tmp_path)
