"""Families with a mixture of experts, opened as an operator would and run by the engine, against
transformers' greedy answers in float32."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, PreTrainedModel

from inference.engine.load.build import build_engine
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from inference.loading.loader import OpenedModel, open_model
from inference.models.backend import AnyModel
from inference.models.families.registry import check_architecture
from inference.models.native.build import find_compiler
from inference.models.registry import build_fastest_model, build_model
from inference.models.weights.stored import DenseWeight
from inference.protocol.engine import SequenceStep, SubmitSequence
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import BadFileError
from inference.protocol.sampling import SamplingParams
from tests.cases import each_case
from tests.inference.greedy import check_greedy
from tests.inference.loading.conftest import SIZES
from tests.inference.models.families.mixtures import (
    CASES,
    NUM_LAYERS,
    QWEN,
    TOKENIZER,
    reference_of,
    written,
)

CONTEXT_TOKENS = 128
OUTPUT_TOKENS = 12


@dataclass(frozen=True, slots=True)
class Files:
    reference: PreTrainedModel
    directory: Path
    gguf: Path


@pytest.fixture(scope="module", params=CASES)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Files:
    case = CASES[request.param]
    folder = tmp_path_factory.mktemp("mixture")
    directory = folder / "hf"
    reference = reference_of(case)
    reference.save_pretrained(directory)
    (directory / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    return Files(reference, directory, written(case, directory, folder / "x.gguf"))


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


@each_case("build", [torch_model, native_model])
@each_case("format", ["safetensors", "gguf"])
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


@each_case(("bits", "most"), [(4, 0.35), (5, 0.37), (6, 0.4)])
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


@each_case(
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
