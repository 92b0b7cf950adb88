"""Families with a mixture of experts, opened as an operator would and run by the engine, against
transformers' greedy answers in float32."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from inference.engine.load.build import build_engine
from inference.engine.scheduling.limits import SchedulerLimits
from inference.loading.loader import OpenedModel, open_model
from inference.loading.safetensors.tensors import SafetensorsFiles
from inference.loading.weights.expert_files import by_expert
from inference.models.backend import AnyModel
from inference.models.families.registry import check_architecture
from inference.models.native.build import find_compiler
from inference.models.registry import build_fastest_model, build_model
from inference.models.weights.stored import DenseWeight
from inference.protocol.engine import SequenceStep, SubmitSequence
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import BadFileError
from inference.protocol.sampling import SamplingParams
from tests.inference.greedy import check_greedy
from tests.inference.loading.conftest import SIZES, save_gguf

CONTEXT_TOKENS = 128
OUTPUT_TOKENS = 12
OWN: dict[str, Any] = {
    "initializer_range": 0.3,
    "attn_implementation": "eager",
    "eos_token_id": None,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
QWEN: dict[str, Any] = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
GROUPS = {"n_group": 4, "topk_group": 2}
NUM_LAYERS = SIZES["num_hidden_layers"]


@dataclass(frozen=True, slots=True)
class Case:
    model_type: str
    overrides: dict[str, Any]
    gguf: str
    """How GGUF calls it."""
    keys: dict[str, Any] = field(default_factory=dict)
    """GGUF's, of its own."""


CASES = {
    "qwen3_moe": Case("qwen3_moe", QWEN | {"norm_topk_prob": True}, "qwen3moe"),
    "qwen3_moe, one layer dense": Case(
        "qwen3_moe", QWEN | {"norm_topk_prob": True, "decoder_sparse_step": 2}, "qwen3moe"
    ),
    "qwen2_moe": Case(
        "qwen2_moe",
        QWEN | {"shared_expert_intermediate_size": 48},
        "qwen2moe",
        {"expert_shared_feed_forward_length": 48},
    ),
    "mixtral": Case("mixtral", {"num_local_experts": 5, "intermediate_size": 32}, "llama"),
    "glm4_moe": Case(
        "glm4_moe",
        {
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "n_shared_experts": 2,
            "routed_scaling_factor": 2.5,
            "use_qk_norm": True,
            "attention_bias": True,
        },
        "glm4moe",
        {
            "expert_gating_func": 2,
            "expert_weights_scale": 2.5,
            "expert_weights_norm": True,
            "expert_shared_count": 2,
            "leading_dense_block_count": 1,
            "rope.dimension_count": 8,
        },
    ),
    "glm4_moe, groups": Case(
        "glm4_moe",
        GROUPS
        | {
            "n_routed_experts": 12,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "routed_scaling_factor": 1.5,
            "norm_topk_prob": False,
        },
        "glm4moe",
        {
            "expert_gating_func": 2,
            "expert_weights_scale": 1.5,
            "expert_weights_norm": False,
            "expert_shared_count": 1,
            "expert_used_count": 3,
            "expert_group_count": 4,
            "expert_group_used_count": 2,
            "leading_dense_block_count": 1,
            "rope.dimension_count": 8,
        },
    ),
    "olmoe": Case("olmoe", QWEN | {"num_key_value_heads": 4, "intermediate_size": 32}, "olmoe"),
}


@dataclass(frozen=True, slots=True)
class Files:
    reference: PreTrainedModel
    directory: Path
    gguf: Path


def reference_of(case: Case) -> PreTrainedModel:
    torch.manual_seed(7)
    # Copied: some configs write into their rotary parameters.
    config = AutoConfig.for_model(case.model_type, **deepcopy(SIZES | OWN | case.overrides))
    reference = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for name, parameter in reference.named_parameters():
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
        else:
            torch.nn.init.normal_(parameter, std=0.3)
    for name, buffer in reference.named_buffers():
        if name.endswith("e_score_correction_bias"):
            torch.nn.init.uniform_(buffer, -0.3, 0.3)
    return reference


def stacked(directory: Path) -> dict[str, torch.Tensor]:
    """Of a saved model: experts as a GGUF file has them."""
    files = by_expert(SafetensorsFiles([directory / "model.safetensors"]))
    weights: dict[str, Any] = {}
    for source in files.names:
        name = source.replace("shared_experts", "shared_expert").replace("n_bias", "n.bias")
        if match := re.fullmatch(r"(.*\.experts)\.(\d+)(\..*)", name):
            own = weights.setdefault(match[1] + match[3], {})
            own[int(match[2])] = files.dense(source)
        else:
            weights[name] = files.dense(source)
    return {
        name: torch.stack([weight[i] for i in range(len(weight))])
        if isinstance(weight, dict)
        else weight
        for name, weight in weights.items()
    }


@pytest.fixture(scope="module", params=CASES)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Files:
    case = CASES[request.param]
    folder = tmp_path_factory.mktemp("mixture")
    directory = folder / "hf"
    reference = reference_of(case)
    reference.save_pretrained(directory)
    (directory / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    return Files(reference, directory, written(case, directory, folder / "x.gguf"))


TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "model": {"type": "BPE", "vocab": {chr(65 + i): i for i in range(26)}, "merges": []},
}


def written(
    case: Case, directory: Path, path: Path, types: dict[str, GGMLQuantizationType] | None = None
) -> Path:
    keys = ("num_experts", "num_local_experts", "n_routed_experts")
    count = next(case.overrides[key] for key in keys if key in case.overrides)
    own = {"expert_count": count, "expert_used_count": 2} | case.keys
    if "moe_intermediate_size" in case.overrides:
        own["expert_feed_forward_length"] = case.overrides["moe_intermediate_size"]
    metadata = {f"{case.gguf}.{key}": value for key, value in own.items()}
    sizes = {name: case.overrides.get(name, size) for name, size in SIZES.items()}
    return save_gguf(path, stacked(directory), case.gguf, types, metadata, sizes)


def opened(source: Path, tmp_path: Path, **changes: Any) -> OpenedModel:
    spec = LoadSpec(job_id="1", model="tiny", source=f"path:{source}", devices=["cpu"], **changes)
    found = open_model(spec, tmp_path / "cache", lambda progress: None)
    assert isinstance(found, OpenedModel)
    return found


def torch_model(found: OpenedModel, native_cache_dir: Path) -> AnyModel:
    return build_model(found.config, found.weights, CONTEXT_TOKENS, "fp32")


def native_model(found: OpenedModel, native_cache_dir: Path) -> AnyModel:
    if find_compiler() is None:
        pytest.skip("no C++ compiler")
    model, execution = build_fastest_model(
        found.config, found.weights, CONTEXT_TOKENS, native_cache_dir, "fp32"
    )
    assert execution.startswith("native")
    return model


def prompt_of(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, 64), k=length)


@pytest.mark.parametrize("build", [torch_model, native_model])
@pytest.mark.parametrize("format", ["safetensors", "gguf"])
def test_the_engine_answers_as_transformers_does(
    files: Files,
    tmp_path: Path,
    native_cache_dir: Path,
    format: str,
    build: Callable[[OpenedModel, Path], AnyModel],
) -> None:
    """Prompts in chunks among others that decode, too few blocks for all, and a prompt again
    whose blocks are there."""
    source = files.directory if format == "safetensors" else files.gguf
    found = opened(source, tmp_path, dtype="float32")
    model = build(found, native_cache_dir)
    found.close()
    block_tokens = 8 if build is torch_model else 32
    engine = build_engine(
        model,
        context_tokens=CONTEXT_TOKENS,
        num_kv_blocks=CONTEXT_TOKENS // block_tokens,
        block_tokens=block_tokens,
        scheduler_limits=SchedulerLimits(prefill_tokens_per_step=24),
        check_when_idle=True,
    )
    prompts = {f"r{n}": prompt_of(n, seed=n) for n in (33, 30, 29, 2)}
    answers: dict[str, list[int]] = {}
    num_cached: dict[str, int] = {}

    def run(sequence_ids: list[str]) -> None:
        params = SamplingParams(max_tokens=OUTPUT_TOKENS, temperature=0.0)
        for name in sequence_ids:
            engine.submit(SubmitSequence(sequence_id=name, token_ids=prompts[name], params=params))
        while engine.has_work:
            for output in engine.step().outputs:
                assert isinstance(output, SequenceStep), output
                answers.setdefault(output.sequence_id, []).extend(output.token_ids)
                if output.num_cached_tokens is not None:
                    num_cached[output.sequence_id] = output.num_cached_tokens

    run(list(prompts))
    assert engine.stats().num_preemptions > 0
    prompts["new"] = prompts["again"] = prompt_of(40, seed=40)
    run(["new"])
    run(["again"])
    assert num_cached["again"] > 0
    assert answers.keys() == prompts.keys()
    for name, prompt in prompts.items():
        assert len(answers[name]) == OUTPUT_TOKENS
        check_greedy(files.reference, prompt, answers[name])


def test_stacked_experts_of_a_file_stay_packed(tmp_path: Path) -> None:
    case = CASES["qwen2_moe"]
    reference_of(case).save_pretrained(tmp_path / "hf")
    layer = "model.layers.1.mlp"
    types = {
        f"{layer}.experts.gate_proj.weight": GGMLQuantizationType.Q4_1,
        f"{layer}.experts.up_proj.weight": GGMLQuantizationType.Q8_0,
        f"{layer}.experts.down_proj.weight": GGMLQuantizationType.Q5_0,
        f"{layer}.shared_expert.up_proj.weight": GGMLQuantizationType.Q8_0,
    }
    file = written(case, tmp_path / "hf", tmp_path / "x.gguf", types)
    found = opened(file, tmp_path)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    for name, type in types.items():
        is_stack = ".experts." in name
        own = name.replace(".experts.", ".experts.4.") if is_stack else name
        stored = found.weights.stored(own.removesuffix(".weight"))
        assert not isinstance(stored, DenseWeight)
        part = {"gate": "gate_exps", "up": "up_exps", "down": "down_exps"}
        kind = name.removesuffix("_proj.weight").rsplit(".", 1)[-1]
        theirs = f"blk.1.ffn_{part[kind] if is_stack else 'up_shexp'}.weight"
        values = gguf.dequantize(tensors[theirs].data, type)
        expected = torch.from_numpy(values[4] if is_stack else values)
        torch.testing.assert_close(stored.dequantize(), expected)
    assert found.weight_bytes == sum(tensor.n_bytes for tensor in tensors.values())
    found.close()


@pytest.mark.parametrize(("bits", "most"), [(4, 0.35), (5, 0.37), (6, 0.4)])
def test_experts_are_quantised_while_loading_and_their_router_is_not(
    tmp_path: Path, bits: int, most: float
) -> None:
    case = CASES["qwen2_moe"]
    reference_of(case).save_pretrained(tmp_path / "hf")
    (tmp_path / "hf" / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    dense = opened(tmp_path / "hf", tmp_path)
    found = opened(tmp_path / "hf", tmp_path, quantization=f"q{bits}")
    layer = "model.layers.0.mlp"
    expert = found.weights.stored(f"{layer}.experts.3.up_proj")
    assert not isinstance(expert, DenseWeight) and expert.bits == bits
    name = f"{layer}.gate.weight"
    assert torch.equal(found.weights.tensor(name), dense.weights.tensor(name))
    # Codes and scales of 32 weights in 20 to 26 bytes, not 128: nearly all weights are experts'.
    assert found.weight_bytes < most * dense.weight_bytes
    assert found.need.weight_bytes < dense.need.weight_bytes
    for model in (dense, found):
        model.close()


def test_more_experts_for_a_token_than_there_are_is_refused() -> None:
    config = AutoConfig.for_model("qwen3_moe", **(SIZES | QWEN | {"num_experts_per_tok": 7}))
    family = check_architecture("qwen3_moe")
    with pytest.raises(BadFileError, match="7 experts per token are more than 6"):
        family.read_config(config.to_dict(), {})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_group": 4}, "6 experts are not 4 groups of the same two or more"),
        ({"n_group": 6}, "6 experts are not 6 groups"),
        ({"n_group": 3, "topk_group": 4}, "4 groups per token are more than 3"),
        ({"n_group": 3, "num_experts_per_tok": 3}, "1 groups of 2 experts are fewer than the 3"),
        ({"n_group": -1}, "n_group is -1"),
        ({"n_group": 2, "topk_group": "all"}, "topk_group is 'all'"),
    ],
)
def test_groups_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    config = AutoConfig.for_model("glm4_moe", **(SIZES | CASES["glm4_moe"].overrides))
    with pytest.raises(BadFileError, match=message):
        check_architecture("glm4_moe").read_config(config.to_dict() | changes, {})


def test_glm_has_a_norm_and_a_bias_by_names_of_its_own_in_gguf() -> None:
    names = check_architecture("glm4_moe").gguf_names
    norm = names.hugging_face("blk.3.post_attention_norm.weight")
    assert norm == "model.layers.3.post_attention_layernorm.weight"
    bias = names.hugging_face("blk.3.exp_probs_b.bias")
    assert bias == "model.layers.3.mlp.gate.e_score_correction_bias"


def test_layers_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    case = CASES["glm4_moe"]
    reference_of(case).save_pretrained(tmp_path / "hf")
    (tmp_path / "hf" / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    path = tmp_path / "hf" / "model.safetensors"
    tensors = load_file(path)
    tensors[f"model.layers.{NUM_LAYERS}.eh_proj.weight"] = torch.ones(2, 2)
    save_file(tensors, path)
    found = opened(tmp_path / "hf", tmp_path)
    assert found.left_out == "1 tensors of multi-token prediction left out"
    found.close()
