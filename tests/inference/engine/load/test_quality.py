"""Models that are quantised while they load: how close they stay, and the reported figure."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cosine_similarity

from inference.engine.load import quality
from inference.engine.load.load_engine import load_engine
from inference.engine.load.quality import NotMeasurableError, compare, quality_in_words
from inference.loading.loader import OpenedModel, open_model
from inference.models.backend import AnyModel
from inference.models.native.model import NativeModel
from inference.models.registry import build_fastest_model, build_model
from inference.protocol.load import Quantization
from inference.protocol.load_progress import LoadProgress
from tests.cases import each_case
from tests.inference.engine.conftest import CONTEXT_TOKENS
from tests.inference.engine.asking import cpu_spec

CALMER = 0.3
"""Times the layers' weights: as they are, a change of a hundredth is another model by layer 3."""
LEAST_COSINE: dict[Quantization, float] = {"q8": 0.9995, "q6": 0.998, "q5": 0.99, "q4": 0.975}
"""The least cosine between the logits and those of the dense weights, in the mean over tokens."""
MOST_NATS: dict[Quantization, float] = {"q8": 0.002, "q6": 0.01, "q5": 0.04, "q4": 0.15}


def save_calmer(source: Path, directory: Path, dtype: torch.dtype) -> Path:
    shutil.copytree(source, directory)
    weights = load_file(directory / "model.safetensors")
    for name, weight in weights.items():
        calmer = weight * CALMER if ".layers." in name and weight.dim() == 2 else weight
        weights[name] = calmer.to(dtype)
    save_file(weights, directory / "model.safetensors")
    return directory


def opened(source: Path, tmp_path: Path, quantization: Quantization = "auto") -> OpenedModel:
    spec = cpu_spec(source, quantization=quantization)
    return open_model(spec, tmp_path / "models", lambda _: None)


def built(model: OpenedModel, execution: str, native_cache_dir: Path) -> AnyModel:
    if execution == "torch":
        return build_model(model.config, model.weights, CONTEXT_TOKENS)
    native, words = build_fastest_model(
        model.config, model.weights, CONTEXT_TOKENS, native_cache_dir
    )
    if not isinstance(native, NativeModel):
        pytest.skip(words)
    return native


def words(
    model: OpenedModel,
    tmp_path: Path,
    reported: list[LoadProgress] | None = None,
    context_tokens: int = CONTEXT_TOKENS,
) -> str:
    return quality_in_words(
        model,
        built(model, "torch", tmp_path),
        "torch operators",
        context_tokens=context_tokens,
        cache_dir=tmp_path / "quality",
        on_progress=[].append if reported is None else reported.append,
    )


@each_case("execution", ["torch", "native"])
@each_case(
    ("quantization", "dtype"),
    [
        ("q8", torch.float32),
        ("q6", torch.bfloat16),
        ("q5", torch.float32),
        ("q4", torch.bfloat16),
    ],
    ids=str,
)
def test_a_quantised_model_stays_close_to_its_dense_self(
    tiny_model_dir: Path,
    native_cache_dir: Path,
    tmp_path: Path,
    execution: str,
    quantization: Quantization,
    dtype: torch.dtype,
) -> None:
    directory = save_calmer(tiny_model_dir, tmp_path / "tiny", dtype)
    token_ids = list(range(3, 99))

    dense, quantized = (
        quality.model_logits(
            built(opened(directory, tmp_path, wanted), execution, native_cache_dir), token_ids
        )
        for wanted in ("auto", quantization)
    )

    assert cosine_similarity(dense, quantized, dim=-1).mean() > LEAST_COSINE[quantization]
    figure = compare(dense.log_softmax(-1).half(), quantized, torch.tensor(token_ids[1:]))
    assert 0 < figure.kl_nats < MOST_NATS[quantization]


def test_the_comparison_is_the_textbooks() -> None:
    generator = torch.Generator().manual_seed(2)
    dense = torch.randn(70, 9, generator=generator).double().log_softmax(-1)
    ours = torch.randn(70, 9, generator=generator).double()
    next_ids = torch.randint(9, (70,), generator=generator)

    figure = compare(dense, ours, next_ids)

    expected = torch.nn.functional.kl_div(
        ours.log_softmax(-1), dense, log_target=True, reduction="batchmean"
    )
    assert figure.num_tokens == 70
    assert figure.kl_nats == pytest.approx(float(expected), rel=1e-4)
    nats = torch.nn.functional.cross_entropy(ours, next_ids)
    assert figure.quantized_perplexity == pytest.approx(float(nats.exp()), rel=1e-4)
    nats = torch.nn.functional.nll_loss(dense, next_ids)
    assert figure.dense_perplexity == pytest.approx(float(nats.exp()), rel=1e-4)
    assert compare(dense, dense, next_ids).kl_nats == pytest.approx(0, abs=1e-6)


def test_the_report_has_the_figure_and_a_second_load_does_not_measure(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = save_calmer(tiny_model_dir, tmp_path / "tiny", torch.bfloat16)
    reported: list[LoadProgress] = []
    first = words(opened(directory, tmp_path, "q4"), tmp_path, reported)
    assert first.startswith("KL 0.")
    assert "nats a token against BF16, perplexity " in first
    assert first.endswith(f"on {CONTEXT_TOKENS - 1} tokens")
    assert [(p.done, p.total) for p in reported] == [(0, 3), (1, 3), (2, 3), (3, 3)]

    monkeypatch.setattr(quality, "prompt_logits", None)  # a second measurement would fail
    assert words(opened(directory, tmp_path, "q4"), tmp_path) == first


def test_a_load_reports_what_quantising_cost(tiny_model_dir: Path, data_dir: Path) -> None:
    spec = cpu_spec(tiny_model_dir, quantization="q8", kv_memory_bytes=4 * 1024**2)
    reported: list[LoadProgress] = []
    report = load_engine(spec, data_dir, reported.append).report
    assert report.quality.startswith("KL 0.") and "q8" in report.quantization
    assert report.weight_bytes < 1.2 * report.num_parameters
    details = list(dict.fromkeys(p.detail for p in reported))
    assert details.index("quantising to q8") < details.index("measuring what quantising cost")

    reported.clear()
    assert load_engine(spec, data_dir, reported.append).report.quality == report.quality
    assert "measuring what quantising cost" not in {p.detail for p in reported}
    dense = load_engine(
        msgspec.structs.replace(spec, quantization="auto"), data_dir, reported.append
    )
    assert dense.report.quality == ""


def test_weights_that_were_quantised_already_count_as_they_are(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    """A GGUF may hold its tables in 8 bits and leave the projections dense."""
    directory = save_calmer(tiny_model_dir, tmp_path / "tiny", torch.float32)
    model = opened(directory, tmp_path, "q8")
    assert model.unquantized is not None
    mixed = replace(model, unquantized=replace(model.unquantized, weights=model.weights))
    assert words(mixed, tmp_path).startswith("KL 0.000")


def test_what_changes_the_figure_or_cannot_be_read_is_measured_anew(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    directory = shutil.copytree(tiny_model_dir, tmp_path / "tiny")
    first = words(opened(directory, tmp_path, "q4"), tmp_path)
    (kept,) = (tmp_path / "quality").iterdir()
    for change in ("other bits", "half a figure", "a file written since"):
        if change == "half a figure":
            kept.write_text('{"kl')
        if change == "a file written since":
            os.utime(directory / "model.safetensors", (1, 1))
        reported: list[LoadProgress] = []
        bits: Quantization = "q8" if change == "other bits" else "q4"
        found = words(opened(directory, tmp_path, bits), tmp_path, reported)
        assert reported and (found == first) == (bits == "q4"), change


def test_why_there_is_no_figure(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotMeasurableError, match="not finite"):
        compare(torch.zeros(1, 5), torch.full((1, 5), torch.nan), torch.tensor([0]))
    model = opened(tiny_model_dir, tmp_path, "q4")
    few = words(model, tmp_path, context_tokens=8)
    assert few == "not measured: the fixed text is 8 tokens to this model"
    monkeypatch.setattr(quality, "free_memory_bytes", lambda device: 1000)
    assert words(model, tmp_path) == (
        "not measured: a dense layer beside the model needs 0.00 GB on cpu, and 0.00 GB are free"
    )
    assert words(opened(tiny_model_dir, tmp_path), tmp_path) == "", "dense loads measure nothing"
    assert not (tmp_path / "quality").exists()
