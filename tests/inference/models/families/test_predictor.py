"""Multi-token prediction beside the formula, written out; and drafts by it through the engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import silu

from inference.engine.engine import Engine
from inference.engine.load.build import build_engine
from inference.engine.load.load_engine import load_engine
from inference.engine.predictor_runner import PredictorRunner
from inference.engine.scheduling.scheduler import SchedulerLimits
from inference.engine.speculation import draft_model
from inference.loading import loader
from inference.loading.loader import OpenedModel, open_model
from inference.models.batch import ALL_ROWS, NUM_LONE_STATES, Batch, PrefillSpan
from inference.models.config import ModelConfig
from inference.models.decoder import DecoderModel
from inference.models.families.predictor import layer_name, predictor_tensors
from inference.models.predictor import Predictor
from inference.models.registry import build_model
from inference.protocol.load import LoadSpec
from tests.inference.models.families import tiny_hybrid as tiny
from tests.inference.models.families.test_hybrid import prompt_of

NUM_BLOCKS = 32
Weights = dict[str, torch.Tensor]


def add_predictor(directory: Path) -> Path:
    """Random, beside the checkpoint's own tensors."""
    file = directory / "model.safetensors"
    config = opened(directory, directory / "cache").config
    weights = load_file(file)
    torch.manual_seed(3)
    prefix = f"model.layers.{config.num_layers}."
    for tensor in predictor_tensors(config):
        name = tensor.name.replace(prefix, "mtp.layers.0.")
        weights[name] = torch.randn(tensor.shape) * (0.3 if len(tensor.shape) > 1 else 0.2)
    save_file(weights, file, {"format": "pt"})
    return directory


def opened(directory: Path, cache_dir: Path, speculation: Any = "off") -> OpenedModel:
    spec = LoadSpec(
        job_id="1",
        model="tiny",
        source=f"path:{directory}",
        devices=["cpu"],
        dtype="float32",
        speculation=speculation,
    )
    model = open_model(spec, cache_dir, lambda _: None)
    assert isinstance(model, OpenedModel)
    return model


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return add_predictor(tiny.save(tiny.qwen3_5(), tmp_path_factory.mktemp("predictor")))


@dataclass(frozen=True)
class Subject:
    model: DecoderModel
    predictor: Predictor
    weights: Weights


@pytest.fixture(scope="module")
def subject(directory: Path) -> Subject:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader, "find_compiler", lambda: None)
        files = opened(directory, directory / "cache", "mtp")
    assert files.config.has_predictor
    model = build_model(files.config, files.weights, tiny.CONTEXT_TOKENS)
    assert isinstance(model, DecoderModel)
    predictor = Predictor(model, files.weights)
    files.close()
    weights = load_file(directory / "model.safetensors")
    return Subject(
        model, predictor, {layer_name(name, model.config): w for name, w in weights.items()}
    )


@torch.no_grad()
def hidden_of(subject: Subject, token_ids: list[int]) -> torch.Tensor:
    kv = subject.model.new_kv(NUM_BLOCKS, tiny.BLOCK_TOKENS, NUM_LONE_STATES)
    batch = Batch.of_sequence(torch.tensor(token_ids), tiny.BLOCK_TOKENS, logit_rows=ALL_ROWS)
    return subject.model.forward_with_hidden(batch, kv)[1]


def rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * (1 + weight)


def rotated(heads: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    """(num_tokens, heads, head_dim), token i at position i; the first features of each head."""
    dim = config.rotary_dim or config.head_dim
    frequencies = config.rope_theta ** -(torch.arange(0, dim, 2) / dim)
    angles = torch.outer(torch.arange(len(heads)), frequencies).unsqueeze(1)
    left, right, rest = heads.split([dim // 2, dim // 2, config.head_dim - dim], dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((left * cos - right * sin, right * cos + left * sin, rest), dim=-1)


@torch.no_grad()
def by_formula(subject: Subject, token_ids: list[int], hidden: torch.Tensor) -> torch.Tensor:
    """What the head is to read at i + 1, of each row: ``token_ids`` are those at i + 1."""
    config, weights = subject.model.config, subject.weights
    layer = f"model.layers.{config.num_layers}."

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return rms(x, weights[f"{name}.weight"], config.rms_norm_eps)

    def product(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ weights[f"{layer}{name}.weight"].T

    embedded = subject.model.embedding.lookup(torch.tensor(token_ids))
    both = torch.cat(
        (norm(embedded, "mtp.pre_fc_norm_embedding"), norm(hidden, "mtp.pre_fc_norm_hidden")), -1
    )
    x = both @ weights["mtp.fc.weight"].T
    normed, count, dim = norm(x, f"{layer}input_layernorm"), len(x), config.head_dim
    gated = product(normed, "self_attn.q_proj").view(count, config.num_heads, 2 * dim)
    queries, gate = gated.split(dim, dim=-1)
    keys = product(normed, "self_attn.k_proj").view(count, config.num_kv_heads, dim)
    values = product(normed, "self_attn.v_proj").view(count, config.num_kv_heads, dim)
    queries = rotated(norm(queries, f"{layer}self_attn.q_norm"), config)
    keys = rotated(norm(keys, f"{layer}self_attn.k_norm"), config)
    keys, values = (
        part.repeat_interleave(config.num_query_groups, dim=1) for part in (keys, values)
    )
    scores = torch.einsum("ihd,jhd->hij", queries, keys) / dim**0.5
    later = torch.ones(count, count, dtype=torch.bool).triu(1)
    attended = torch.einsum(
        "hij,jhd->ihd", scores.masked_fill(later, float("-inf")).softmax(-1), values
    )
    x = x + product((attended * gate.sigmoid()).flatten(1), "self_attn.o_proj")
    normed = norm(x, f"{layer}post_attention_layernorm")
    inner = silu(product(normed, "mlp.gate_proj")) * product(normed, "mlp.up_proj")
    return norm(x + product(inner, "mlp.down_proj"), "mtp.norm")


@torch.no_grad()
def drafts_by_formula(subject: Subject, token_ids: list[int], length: int) -> list[int]:
    hidden, tokens = hidden_of(subject, token_ids[:-1]), token_ids[1:]
    drafts: list[int] = []
    for _ in range(length):
        read = by_formula(subject, [*tokens, *drafts], hidden)
        drafts.append(int(subject.model.logits(read[-1:]).argmax()))
        hidden = torch.cat((hidden, read[-1:]))
    return drafts


@torch.no_grad()
def test_the_formula(subject: Subject) -> None:
    text = prompt_of(37)
    hidden = hidden_of(subject, text)
    reference = tiny.qwen3_5().model.language_model
    expected = reference(torch.tensor([text])).last_hidden_state[0]
    assert torch.allclose(hidden, expected, atol=1e-3)
    count = len(text) - 1
    places = torch.arange(count)
    span = PrefillSpan(0, count, 0, count, torch.arange(-(-count // tiny.BLOCK_TOKENS)))
    batch = Batch(torch.tensor(text[1:]), places, places, spans=(span,))
    kv = subject.predictor.new_kv(NUM_BLOCKS, tiny.BLOCK_TOKENS)
    found = subject.predictor.forward(batch, hidden[:-1], kv)
    assert torch.allclose(found, by_formula(subject, text[1:], hidden[:-1]), atol=1e-3)


def engine_of(subject: Subject, *, drafts: bool, num_kv_blocks: int = 128) -> Engine:
    return build_engine(
        subject.model,
        context_tokens=min(tiny.CONTEXT_TOKENS, num_kv_blocks * tiny.BLOCK_TOKENS),
        num_kv_blocks=num_kv_blocks,
        block_tokens=tiny.BLOCK_TOKENS,
        scheduler_limits=SchedulerLimits(prefill_tokens_per_step=19, max_running=8),
        predictor=subject.predictor if drafts else None,
        check_when_idle=True,
    )


def answers(engine: Engine, lengths: tuple[int, ...]) -> dict[str, list[int]]:
    for length in lengths:
        tiny.submit(engine, str(length), prompt_of(length), 24)
    return tiny.run(engine)[0]


@pytest.mark.parametrize("num_kv_blocks", [128, 9])
def test_drafts_are_those_of_the_formula_and_change_nothing(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, num_kv_blocks: int
) -> None:
    """Whether drafts come true or not, and after a preemption."""
    lengths = (1, 20, 33)
    expected = answers(engine_of(subject, drafts=False), lengths)
    made: list[tuple[list[int], list[int]]] = []
    draft = PredictorRunner.draft

    def recorded(self: PredictorRunner, rows: Any) -> list[list[int]]:
        """Every other time what will come."""
        found = draft(self, rows)
        for row, token_ids in zip(rows, found, strict=True):
            if token_ids:
                made.append((list(row.sequence.token_ids), token_ids))
        if len(made) % 2:
            return found
        return [
            expected[row.sequence.sequence_id][row.sequence.num_output_tokens :][: row.length]
            for row in rows
        ]

    monkeypatch.setattr(PredictorRunner, "draft", recorded)
    monkeypatch.setattr(
        draft_model, "best_length", lambda _n, candidates, _c, _m: min(3, max(candidates)[0])
    )
    engine = engine_of(subject, drafts=True, num_kv_blocks=num_kv_blocks)
    assert answers(engine, lengths) == expected
    stats = engine.stats()
    assert 0 < stats.num_accepted_drafts < stats.num_drafted_tokens
    assert (stats.num_preemptions > 0) == (num_kv_blocks == 9)
    assert len(made) > 10
    for token_ids, drafts in made:
        assert drafts == drafts_by_formula(subject, token_ids, len(drafts))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_loaded(directory: Path, native_cache_dir: Path, tmp_path: Path, dtype: Any) -> None:
    """On torch's operators; the native decoder, which runs what is in float32, has none."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "native").symlink_to(native_cache_dir)
    spec = LoadSpec(
        job_id="1",
        model="m",
        source=f"path:{directory}",
        devices=["cpu"],
        dtype=dtype,
        kv_memory_bytes=4_000_000,
        speculation="mtp",
    )
    loaded = load_engine(spec, tmp_path, lambda progress: None)
    engine = loaded.engine
    assert isinstance(engine, Engine)
    tiny.submit(engine, "a", prompt_of(20), 12)
    assert len(tiny.run(engine)[0]["a"]) == 12
    if loader.find_compiler() is None or dtype == "bfloat16":
        assert loaded.report.speculation == "multi-token prediction, up to 8 tokens a step"
        assert engine.stats().num_drafted_tokens > 0
    else:
        assert "none: " in loaded.report.speculation
        assert engine.stats().num_drafted_tokens == 0
