"""A tiny random model of a family, saved as its publisher would, opened as an operator would, and
its answers held against transformers'.

    transformers' class ─▶ safetensors or GGUF ─▶ open_model ─▶ model ─▶ engine ─▶ tokens
             └─────────────── the likeliest next token of each ────────────────┘
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import torch
from tokenizers import Tokenizer, models
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from inference.engine.engine import Engine
from inference.engine.load.build import build_engine
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from inference.loading.loader import OpenedModel, open_model
from inference.models.backend import AnyModel
from inference.models.families.registry import family_of
from inference.models.registry import build_model
from inference.protocol.engine import SequenceStep, SubmitSequence
from inference.protocol.load import LoadSpec
from inference.protocol.sampling import SamplingParams
from tests.inference.greedy import check_greedy
from tests.inference.loading.conftest import add_key
from tests.inference.models.families.rows import CONTEXT_TOKENS, SIZES, VOCAB_SIZE, Row

BLOCK_TOKENS = 8


def build_reference(row: Row) -> PreTrainedModel:
    torch.manual_seed(7)
    config = AutoConfig.for_model(row.model_type, **row.sizes)
    reference = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.rand_like(parameter) - 0.5)
            for part, times in row.louder.items():
                if part in name:
                    parameter.mul_(times)
    return reference


def save_safetensors(reference: PreTrainedModel, folder: Path) -> Path:
    reference.save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE(vocab={chr(65 + i): i for i in range(26)}, merges=[]))
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def save_gguf(row: Row, reference: PreTrainedModel, path: Path) -> Path:
    """Saves a GGUF by the gguf package's own names, which are llama.cpp's."""
    assert row.gguf is not None
    config, architecture = reference.config, row.gguf.architecture
    writer = gguf.GGUFWriter(path, architecture)
    add_keys(writer, row, config)
    (kind,) = (arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    for name, weight in reference.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = weight.float()
        if name.endswith("norm.weight"):
            values = values + row.gguf.norm_offset
        if row.gguf.interleaves and (".q_proj." in name or ".k_proj." in name):
            values = in_pairs(values, config.head_dim)
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert found is not None, f"{architecture} has no name for {name}"
        writer.add_tensor(found, values.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_keys(writer: gguf.GGUFWriter, row: Row, config: Any) -> None:
    assert row.gguf is not None
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(SIZES["head_dim"])
    eps = ("rms_norm_eps", "layer_norm_eps", "norm_epsilon")
    writer.add_key_value(
        f"{row.gguf.architecture}.{row.gguf.eps_key}",
        next(getattr(config, name) for name in eps if hasattr(config, name)),
        gguf.GGUFValueType.FLOAT32,
    )
    base = {"rope.freq_base": float(config.rope_parameters.get("rope_theta", 0.0))}
    for key, value in (base | row.gguf.keys).items():
        add_key(writer, f"{row.gguf.architecture}.{key}", value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["a", "b", "ab", *(chr(0x100 + i) for i in range(3, VOCAB_SIZE))])
    writer.add_token_types([1] * VOCAB_SIZE)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)


def in_pairs(values: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Orders rows as llama.cpp's converter writes a llama's queries and keys."""
    halves = values.reshape(-1, 2, head_dim // 2, *values.shape[1:])
    return halves.transpose(1, 2).reshape(values.shape)


def opened(source: Path, cache_dir: Path) -> OpenedModel:
    spec = LoadSpec(job_id="1", model="m", source=f"path:{source}", dtype="float32")
    found = open_model(spec, cache_dir, lambda progress: None)
    assert isinstance(found, OpenedModel)
    return found


def check_source(reference: PreTrainedModel, source: Path, cache_dir: Path) -> None:
    """Checks that torch's operators compute the family's layers from these files."""
    check_batch_mates(reference, built_on_torch(source, cache_dir))


def built_on_torch(source: Path, cache_dir: Path) -> AnyModel:
    model = opened(source, cache_dir)
    names = {tensor.name for tensor in family_of(model.config).tensors(model.config)}
    assert names, "preflight has something to look for"
    built = build_model(model.config, model.weights, CONTEXT_TOKENS)
    model.close()
    return built


def check_engine(reference: PreTrainedModel, model: AnyModel) -> None:
    """Checks the layers, and what the engine makes of their keys, values and states: which differs
    by how these are stored, not by family."""
    check_batch_mates(reference, model)
    check_preemption(reference, model)
    check_prefix_hits(reference, model)


def check_batch_mates(
    reference: PreTrainedModel,
    model: AnyModel,
    *,
    block_tokens: int = BLOCK_TOKENS,
    vocab_size: int = VOCAB_SIZE,
) -> None:
    """Prompts of all lengths, in chunks, beside each other and beside sequences that decode."""
    prompts = [prompt_of(length, length, vocab_size) for length in (1, 40, 61)]
    engine = engine_of(model, prefill_tokens_per_step=19, block_tokens=block_tokens)
    for prompt, answer in zip(prompts, answers_of(engine, prompts, 6), strict=True):
        check_greedy(reference, prompt, answer.token_ids)


def check_preemption(reference: PreTrainedModel, model: AnyModel) -> None:
    prompts = [prompt_of(20, seed=seed) for seed in (1, 2, 3)]
    engine = engine_of(model, num_kv_blocks=10)
    found = answers_of(engine, prompts, 12)
    assert engine.stats().num_preemptions > 0
    for prompt, answer in zip(prompts, found, strict=True):
        check_greedy(reference, prompt, answer.token_ids)


def check_prefix_hits(reference: PreTrainedModel, model: AnyModel) -> None:
    shared, engine = prompt_of(4 * BLOCK_TOKENS, seed=8), engine_of(model)
    cached = []
    for prompt in (shared, shared + prompt_of(5, seed=9)):
        (answer,) = answers_of(engine, [prompt], 6)
        check_greedy(reference, prompt, answer.token_ids)
        cached.append(answer.num_cached_tokens)
    assert cached[0] == 0 < cached[1]


def prompt_of(length: int, seed: int, vocab_size: int = VOCAB_SIZE) -> list[int]:
    return random.Random(seed).choices(range(vocab_size), k=length)


def engine_of(
    model: AnyModel,
    *,
    num_kv_blocks: int = 64,
    prefill_tokens_per_step: int = 64,
    block_tokens: int = BLOCK_TOKENS,
) -> Engine:
    return build_engine(
        model,
        context_tokens=min(CONTEXT_TOKENS, num_kv_blocks * block_tokens),
        num_kv_blocks=num_kv_blocks,
        block_tokens=block_tokens,
        scheduler_limits=SchedulerLimits(prefill_tokens_per_step=prefill_tokens_per_step),
        check_when_idle=True,
    )


@dataclass(slots=True)
class Answer:
    token_ids: list[int] = field(default_factory=list)
    num_cached_tokens: int = 0
    """The number of the prompt's tokens that came from the cache."""


def answers_of(engine: Engine, prompts: list[list[int]], num_tokens: int) -> list[Answer]:
    """All at once, each ``num_tokens`` long."""
    params = SamplingParams(max_tokens=num_tokens, temperature=0.0)
    for index, prompt in enumerate(prompts):
        engine.submit(SubmitSequence(sequence_id=str(index), token_ids=prompt, params=params))
    answers = [Answer() for _ in prompts]
    while engine.has_work:
        for output in engine.step().outputs:
            assert isinstance(output, SequenceStep), output
            answer = answers[int(output.sequence_id)]
            answer.token_ids.extend(output.token_ids)
            answer.num_cached_tokens += output.num_cached_tokens or 0
    return answers
