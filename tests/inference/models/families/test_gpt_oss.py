"""gpt-oss, from dense files and from files in MXFP4 as they are published, against transformers."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from inference.loading.weights.named_files import unpacked
from inference.models.registry import unsupported_reason
from inference.models.stored_weights import GroupedWeight
from inference.protocol.load_errors import BadFileError
from tests.inference.loading.conftest import edit_json
from tests.inference.models.families import parity, tiny_gguf
from tests.inference.models.families.rows import YARN, Row

NUM_EXPERTS = 4
MXFP4_TYPE = gguf.GGMLQuantizationType.MXFP4
ROW = Row(
    model_type="gpt_oss",
    config={
        "intermediate_size": 32,
        "num_local_experts": NUM_EXPERTS,
        "num_experts_per_tok": 2,
        "sliding_window": 20,
        "rope_parameters": YARN | {"truncate": False},
    },
)


def reference_of(row: Row) -> PreTrainedModel:
    model = parity.build_reference(row)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "router" in name or "experts" in name or "sinks" in name:
                parameter.normal_(std=0.5)
    return model


def test_dense_files_and_files_in_mxfp4(tmp_path: Path) -> None:
    reference = reference_of(ROW)
    folder = parity.save_safetensors(reference, tmp_path / "dense")
    parity.check_source(reference, folder, tmp_path)
    model = parity.opened(folder, tmp_path)
    held = load_file(folder / "model.safetensors")
    assert model.weight_bytes == sum(tensor.nbytes for tensor in held.values())
    reason = unsupported_reason(model.config, ctypes.CDLL(None))
    assert reason is not None and reason.startswith("the native decoder has no")
    model.close()
    folder = save_mxfp4(reference, tmp_path / "model")
    parity.check_source(reference, folder, tmp_path)
    held = load_file(folder / "model.safetensors")
    check_packed(folder, tmp_path, sum(tensor.nbytes for tensor in held.values()))
    del held["model.layers.0.mlp.experts.down_proj_scales"]
    save_file(held, folder / "model.safetensors")
    with pytest.raises(BadFileError, match=r"lack model.layers.0.mlp.experts.0.down_proj.weight"):
        parity.opened(folder, tmp_path)
    path = tmp_path / "x.gguf"
    save_gguf(reference, path)
    parity.check_source(reference, path, tmp_path)
    check_packed(path, tmp_path, sum(tensor.n_bytes for tensor in gguf.GGUFReader(path).tensors))


def check_packed(source: Path, cache_dir: Path, num_bytes: int) -> None:
    model = parity.opened(source, cache_dir)
    stored = model.weights.stored("model.layers.1.mlp.experts.2.up_proj")
    assert isinstance(stored, GroupedWeight) and stored.bits == 8
    assert model.weight_bytes == num_bytes
    model.close()


@torch.no_grad()
def save_mxfp4(reference: PreTrainedModel, folder: Path) -> Path:
    """Saves random codes, whose values ``reference`` gets, as transformers unpacks them."""
    parity.save_safetensors(reference, folder)
    tensors = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(3)
    for index, layer in enumerate(reference.model.layers):
        for name in ("gate_up_proj", "down_proj"):
            dense = getattr(layer.mlp.experts, name)
            _, num_inputs, num_outputs = dense.shape
            shape = NUM_EXPERTS, num_outputs, num_inputs // 32
            blocks = torch.randint(0, 256, (*shape, 16), generator=generator, dtype=torch.uint8)
            scales = torch.randint(122, 126, shape, generator=generator, dtype=torch.uint8)
            dense.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
            stack = f"model.layers.{index}.mlp.experts.{name}"
            del tensors[stack]
            tensors |= {f"{stack}_blocks": blocks, f"{stack}_scales": scales}
    save_file(tensors, folder / "model.safetensors")
    edit_json(folder / "config.json", quantization_config={"quant_method": "mxfp4"})
    return folder


@torch.no_grad()
def save_gguf(reference: PreTrainedModel, path: Path) -> None:
    """Experts as llama.cpp's converter stacks them, in MXFP4, whose values ``reference`` gets; the
    rest as it is."""

    tensors = {
        name.replace(".sinks", ".sinks.weight"): weight
        for name, weight in reference.state_dict().items()
        if ".experts." not in name
    }
    for index, layer in enumerate(reference.model.layers):
        for name, stack in stacks_of(layer.mlp.experts):
            if name.endswith("weight"):
                codes = gguf.quantize(stack.float().contiguous().numpy(), MXFP4_TYPE)
                stack.copy_(torch.from_numpy(gguf.dequantize(codes, MXFP4_TYPE)))
            tensors[f"blk.{index}.ffn_{name}"] = stack
    own = {"expert_feed_forward_length": reference.config.intermediate_size}
    encode = tiny_gguf.in_types({"_exps.weight": MXFP4_TYPE})
    kind = gguf.MODEL_ARCH.GPT_OSS
    tiny_gguf.write(path, kind, reference.config, tensors.items(), own, encode=encode)


def stacks_of(experts: Any) -> list[tuple[str, torch.Tensor]]:
    """Views of gates and the rest apart, with outputs first: (E, out, in), and biases (E, out)."""
    both, bias = experts.gate_up_proj, experts.gate_up_proj_bias
    return [
        ("gate_exps.weight", both[..., ::2].transpose(1, 2)),
        ("up_exps.weight", both[..., 1::2].transpose(1, 2)),
        ("down_exps.weight", experts.down_proj.transpose(1, 2)),
        ("gate_exps.bias", bias[:, ::2]),
        ("up_exps.bias", bias[:, 1::2]),
        ("down_exps.bias", experts.down_proj_bias),
    ]


def test_mxfp4_is_unpacked_exactly() -> None:
    blocks = torch.arange(256, dtype=torch.uint8).view(1, 16, 16)
    scales = torch.arange(0, 254, 16, dtype=torch.uint8).view(1, 16)
    found = unpacked(blocks, scales).dequantize()
    expected = convert_moe_packed_tensors(blocks[None], scales[None], dtype=torch.float32)[0].T
    assert torch.equal(found, expected)
    with pytest.raises(BadFileError, match="x has a scale that is not a number"):
        unpacked(blocks, torch.full_like(scales, 255), "x")
