"""The benchmarks report where no card was there to measure, and compare like with like:
every way of attending gives the same answer, so does every drawer, and a floor counts what a model
holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.cuda import attention, drawer, step
from benchmarks.cuda.limits import copy_bytes_per_s, matmul_flops_per_s
from benchmarks.cuda.rows import measured
from benchmarks.cuda.shapes import projection_weights
from inference.models.decoder import DecoderModel
from inference.models.layers.attention_mixer import AttentionMixer
from inference.models.layers.mlp import DenseMlp
from tests.cases import each_case
from tests.inference.models.cuda.tiny import CONFIG


@pytest.mark.skipif(torch.cuda.is_available(), reason="would measure")
@each_case("benchmark", [attention, step, drawer])
def test_without_a_card_every_row_is_unmeasured(
    benchmark: object, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark.main()  # type: ignore[attr-defined]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 20
    assert all(line.endswith("unmeasured: no CUDA device") for line in lines)


def test_a_cpu_copies_and_multiplies_at_some_rate() -> None:
    device = torch.device("cpu")
    assert copy_bytes_per_s(device, num_bytes=2**20) > 0
    assert matmul_flops_per_s(device, side=64) > 0


def test_a_row_that_fails_reports_how(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise TypeError("varlen_attn() got an unexpected keyword argument 'block_table'\nmore")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert measured("row", fail).result == (
        "failed: TypeError: varlen_attn() got an unexpected keyword argument 'block_table'"
    )


@pytest.mark.slow
def test_all_attention_rows_compute_the_same(device: torch.device) -> None:
    problem = attention.Problem.make(2, 40, device)
    for queries_each, ways in (
        (1, (attention.sdpa_decode, attention.TRITON_DECODE)),
        (40, (attention.sdpa_prefill, attention.triton_prefill)),
    ):
        found = []
        for way in ways:
            torch.manual_seed(1)
            found.append(way(problem, queries_each)().float())  # type: ignore[operator]
        assert torch.allclose(found[0], found[1], atol=0.03)


@pytest.mark.parametrize("sampling", drawer.SAMPLINGS)
def test_all_drawers_draw_the_same(device: torch.device, sampling: str) -> None:
    scores, params = drawer.scores_of(3, 500, device), drawer.SAMPLINGS[sampling]
    found = [
        drawer.work(drawer_on(device), scores, params)().tolist()
        for drawer_on in drawer.DRAWERS.values()
    ]
    assert found[0] == found[1]
    assert len(set(found[0])) > 1


@each_case("weight_format", ["bf16", "int8", "int4"])
@torch.inference_mode()
def test_random_weights_make_a_model_and_the_floor_counts_them(
    device: torch.device, weight_format: step.WeightFormat
) -> None:
    config = replace(CONFIG, hidden_size=64, intermediate_size=96, head_dim=16)
    weights = step.RandomWeights(config, weight_format, device)
    model = DecoderModel(config, weights, config.max_positions, "bf16")
    kv = model.new_kv(4, step.BLOCK_TOKENS)
    decode = step.decode_step(2, 2)
    assert bool(model.forward(decode, kv).isfinite().all())
    prompt = step.prefill_step(64)
    assert model.forward(prompt, kv).shape == (1, config.vocab_size)
    held = [weights.linear(f"layer.{name}").out_features for name in ("q_proj", "o_proj")]
    assert held == [config.num_heads * config.head_dim, config.hidden_size]
    if weight_format == "bf16":
        projections = [
            linear
            for layer in model.layers
            if isinstance(layer.mixer, AttentionMixer) and isinstance(layer.mlp, DenseMlp)
            for linear in (
                layer.mixer.qkv,
                layer.mixer.output,
                layer.mlp.gate_up,
                layer.mlp.down,
            )
        ]
        num_weights = sum(p.in_features * p.out_features for p in projections)
        assert projection_weights(config) == num_weights
