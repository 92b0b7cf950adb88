"""A tiny random model of a family, saved as its publisher would, opened as an operator would, and
its answers held against transformers'.

    transformers' class ─▶ safetensors or GGUF ─▶ open_model ─▶ model ─▶ engine ─▶ tokens
             └─────────────── the likeliest next token of each ────────────────┘
"""

from __future__ import annotations

import ctypes
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import gguf
import torch
from tokenizers import Tokenizer, models
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from inference.engine.engine import Engine
from inference.engine.load.build import build_engine
from inference.engine.waiting_queue import SchedulerLimits
from inference.loading.loader import OpenedModel
from inference.models.adapter import adaptable_shapes
from inference.models.backend import AnyModel
from inference.models.config import ModelConfig
from inference.models.families.registry import family_of
from inference.models.kv_format import KVFormat
from inference.models.native.model import NativeModel
from inference.models.registry import build_model, unsupported_reason
from inference.protocol.engine import SamplingParams, SequenceFailed, SubmitSequence
from inference.protocol.images import SequenceImage
from tests.inference.greedy import check_greedy
from tests.inference.loading import conftest
from tests.inference.models.families import tiny_gguf
from tests.inference.models.families.rows import CONTEXT_TOKENS, VOCAB_SIZE, Row

BLOCK_TOKENS = 8


def build_reference(row: Row) -> PreTrainedModel:
    torch.manual_seed(7)
    config = AutoConfig.for_model(row.model_type, **deepcopy(row.sizes))
    reference = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.rand_like(parameter) - 0.5)
            for part, times in row.louder.items():
                if part in name:
                    parameter.mul_(times)
        for name, buffer in reference.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.uniform_(-0.3, 0.3)
    return reference


def save_safetensors(reference: PreTrainedModel, folder: Path) -> Path:
    reference.save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE(vocab={chr(65 + i): i for i in range(26)}, merges=[]))
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def save_gguf(
    row: Row,
    reference: PreTrainedModel,
    path: Path,
    types: tiny_gguf.Types | None = None,
    added: Mapping[str, torch.Tensor] | None = None,
) -> Path:
    """Saves a GGUF by the gguf package's own names, which are llama.cpp's. ``types``: see
    ``tiny_gguf.in_types``. ``added``: beside the model's own tensors."""
    state = reference.state_dict() | dict(added or {})
    return save_text(row, reference.config, state, path, encode=tiny_gguf.in_types(types))


def save_text(
    own: Row, config: Any, state: Mapping[str, torch.Tensor], path: Path, **given: Any
) -> Path:
    """``config``: of the text model, whose names ``state`` has; ``given``: see
    ``tiny_gguf.write``."""

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in state.items():
            values = weight.float()
            if name.endswith("norm.weight"):
                values = values + own.norm_offset
            if own.interleaves and (".q_proj." in name or ".k_proj." in name):
                values = tiny_gguf.in_pairs(values, config.head_dim)
            if name.endswith("e_score_correction_bias"):
                name = name.removesuffix("_bias").replace("gate.moe_statics", "moe_statics")
                name, values = f"{name}.bias", values.flatten()
            if own.transposes and ".experts." in name:
                values = values.transpose(1, 2)
            yield from tiny_gguf.unstacked(name, values)

    kind = kind_of(own.architecture)
    return tiny_gguf.write(path, kind, config, tensors(), own.keys, **given)


def kind_of(architecture: str) -> gguf.MODEL_ARCH:
    (kind,) = (arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    return kind


def opened(source: Path, cache_dir: Path, **changes: Any) -> OpenedModel:
    """Opens the model as an operator would, in float32."""
    return conftest.opened(source, cache_dir, **{"dtype": "float32"} | changes)


def check_source(reference: PreTrainedModel, source: Path, cache_dir: Path) -> None:
    """Checks that torch's operators compute the family's layers from these files."""
    check_batch_mates(reference, built_on_torch(source, cache_dir))


def built_on_torch(
    source: Path, cache_dir: Path, context_tokens: int = CONTEXT_TOKENS, **changes: Any
) -> AnyModel:
    model = opened(source, cache_dir, **changes)
    built = build_model(model.config, model.weights, context_tokens)
    model.close()
    return built


def natively(
    library: ctypes.CDLL,
    source: Path,
    cache_dir: Path,
    kv_format: KVFormat = "fp32",
    context_tokens: int = CONTEXT_TOKENS,
) -> NativeModel:
    model = opened(source, cache_dir)
    assert unsupported_reason(model.config, library) is None
    native = NativeModel(library, model.config, model.weights, context_tokens, kv_format)
    model.close()
    return native


LAYER_MLP = re.compile(r"model\.layers\.(\d+)\.mlp\.")


def check_adaptable(reference: PreTrainedModel, config: ModelConfig) -> None:
    """Checks that adapters may change what PEFT trains where it is to train all linear layers."""
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


def check_engine(reference: PreTrainedModel, model: AnyModel) -> None:
    """Checks the layers, and what the engine makes of their keys, values and states: which differs
    by how these are stored, not by family."""
    check_batch_mates(reference, model)
    check_preemption(reference, model)
    check_prefix_hits(reference, model)


def check_batch_mates(reference: PreTrainedModel, model: AnyModel) -> None:
    """Prompts of all lengths, in chunks, beside each other and beside sequences that decode."""
    prompts = [prompt_of(length, seed=length) for length in (1, 40, 61)]
    check_answers(reference, engine_of(model, prefill_tokens_per_step=19), prompts, 6)


def check_preemption(reference: PreTrainedModel, model: AnyModel) -> None:
    engine = engine_of(model, num_kv_blocks=10)
    check_answers(reference, engine, [prompt_of(20, seed=seed) for seed in (1, 2, 3)], 12)
    assert engine.stats().num_preemptions > 0


def check_prefix_hits(reference: PreTrainedModel, model: AnyModel) -> None:
    shared, engine = prompt_of(4 * BLOCK_TOKENS, seed=8), engine_of(model)
    assert check_answers(reference, engine, [shared], 6) == {"0": 0}
    assert check_answers(reference, engine, [shared + prompt_of(5, seed=9)], 6)["0"] > 0


def check_answers(
    reference: PreTrainedModel, engine: Engine, prompts: list[list[int]], num_tokens: int
) -> dict[str, int]:
    """Checks the answers to prompts that are asked all at once. Returns the number of each one's
    tokens that came from the cache."""
    for index, prompt in enumerate(prompts):
        submit(engine, str(index), prompt, num_tokens)
    answers, cached = run(engine)
    for index, prompt in enumerate(prompts):
        assert len(answers[str(index)]) == num_tokens
        check_greedy(reference, prompt, answers[str(index)])
    return cached


def prompt_of(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(VOCAB_SIZE), k=length)


def block_tokens_of(model: AnyModel) -> int:
    return model.decoder.block_tokens if isinstance(model, NativeModel) else BLOCK_TOKENS


def engine_of(
    model: AnyModel,
    *,
    context_tokens: int = CONTEXT_TOKENS,
    num_kv_blocks: int = 64,
    prefill_tokens_per_step: int = 64,
    max_running: int = 8,
    **given: Any,
) -> Engine:
    """``given``: see ``build_engine``."""
    block_tokens = block_tokens_of(model)
    return build_engine(
        model,
        context_tokens=min(context_tokens, num_kv_blocks * block_tokens),
        num_kv_blocks=num_kv_blocks,
        block_tokens=block_tokens,
        scheduler_limits=SchedulerLimits(
            prefill_tokens_per_step=prefill_tokens_per_step, max_running=max_running
        ),
        check_when_idle=True,
        **given,
    )


def submit(
    engine: Engine,
    sequence_id: str,
    prompt: list[int],
    num_tokens: int,
    images: Sequence[SequenceImage] = (),
) -> None:
    params = SamplingParams(max_tokens=num_tokens, temperature=0.0)
    engine.submit(
        SubmitSequence(
            sequence_id=sequence_id, token_ids=prompt, params=params, images=list(images)
        )
    )


def run(engine: Engine) -> tuple[dict[str, list[int]], dict[str, int]]:
    """Step until nothing is left: every sequence's output, and how much of its prompt was known."""
    answers, cached, failed = outcomes(engine)
    assert not failed
    return answers, cached


Outcomes = tuple[dict[str, list[int]], dict[str, int], dict[str, str]]


def outcomes(engine: Engine) -> Outcomes:
    """As ``run``, and the codes of those that fail."""
    answers: dict[str, list[int]] = {}
    cached: dict[str, int] = {}
    failed: dict[str, str] = {}
    while engine.has_work:
        for output in engine.step().outputs:
            if isinstance(output, SequenceFailed):
                failed[output.sequence_id] = output.code
                continue
            answers.setdefault(output.sequence_id, []).extend(output.token_ids)
            if output.num_cached_tokens is not None:
                cached[output.sequence_id] = output.num_cached_tokens
        engine.scheduler.check_integrity()
    return answers, cached, failed
