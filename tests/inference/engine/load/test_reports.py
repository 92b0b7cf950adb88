"""Which drafts a model is loaded with, a model that makes them among them, and how its report
describes them. Models that are quantised while they load: how close they stay, and that figure."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch.nn.functional import cosine_similarity

from inference.engine.load import quality
from inference.engine.load.built_model import NO_PREDICTOR, choose_speculator, speculation_in_words
from inference.engine.load.load_engine import load_engine
from inference.engine.load.quality import NotMeasurableError, compare, quality_in_words
from inference.loading.described import check_shared_vocabulary
from inference.loading.loader import OpenedModel, open_model
from inference.models.backend import AnyModel
from inference.models.config import ModelConfig
from inference.models.kv_format import KVFormat
from inference.models.native.model import NativeModel
from inference.models.registry import build_fastest_model, build_model
from inference.protocol.load import NO_PROJECTOR, Quantization, draft_spec, spec_digest
from inference.protocol.load_errors import OtherVocabularyError
from inference.protocol.load_report import LoadProgress
from tests.cases import each_case
from tests.inference.engine.asking import answer_of, cpu_spec
from tests.inference.engine.conftest import CONTEXT_TOKENS
from tests.inference.engine.load.test_kv_memory import HYBRID

DRAFTED: dict[str, Any] = {"speculation": "draft_model", "draft_model": "path:/d"}


def test_it_is_loaded_beside_the_model_and_counted(tiny_model_dir: Path, data_dir: Path) -> None:
    draft = {"speculation": "draft_model", "draft_model": f"path:{tiny_model_dir}"}
    lookup = {"speculation": "prompt_lookup", "max_draft_tokens": 4}
    few_words = {"logit_bias": dict.fromkeys((5, 6, 7), 100.0)}
    plain, drafting, looking = (
        load_engine(
            cpu_spec(tiny_model_dir, kv_memory_bytes=4_000_000, **how), data_dir, lambda _: None
        )
        for how in ({}, draft | {"max_draft_tokens": 4}, lookup)
    )
    assert answer_of(drafting, [1, 2, 3], 30) == answer_of(plain, [1, 2, 3], 30)
    ours, theirs = drafting.report, plain.report
    assert "draft model path:" in ours.speculation and "up to 4 tokens" in ours.speculation
    assert ours.weight_bytes == 2 * theirs.weight_bytes
    assert ours.num_kv_blocks == theirs.num_kv_blocks // 2
    assert abs(ours.kv_bytes - theirs.kv_bytes) <= 2 * theirs.kv_bytes // theirs.num_kv_blocks
    assert ours.estimated_bytes > theirs.estimated_bytes
    assert looking.report.speculation == "prompt lookup, up to 4 tokens a step"
    assert len(answer_of(looking, [1, 2, 3], 30, **few_words)) == 30
    assert looking.engine.stats().num_drafted_tokens > 0


def test_one_of_another_vocabulary_is_refused_by_name(
    tiny_model_dir: Path, data_dir: Path, tmp_path: Path
) -> None:
    other_dir = shutil.copytree(tiny_model_dir, tmp_path / "other")
    file = other_dir / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.add_tokens(["<pad0>", "<pad1>"])  # what fills up a vocabulary does not count
    tokenizer.save(str(file))
    check_shared_vocabulary(tiny_model_dir, other_dir, "d")
    check_shared_vocabulary(other_dir, tiny_model_dir, "d")
    definition = json.loads(file.read_text())
    vocabulary = definition["model"]["vocab"]
    vocabulary["Q"], vocabulary["q"] = vocabulary["q"], vocabulary["Q"]
    file.write_text(json.dumps(definition))
    spec = cpu_spec(tiny_model_dir, speculation="draft_model", draft_model=f"path:{other_dir}")
    with pytest.raises(OtherVocabularyError, match="another vocabulary: token"):
        load_engine(spec, data_dir, lambda _: None)


def test_its_spec_is_the_models_but_for_the_files() -> None:
    spec = cpu_spec("/m", kv_dtype="int8", file="x", revision="2", **DRAFTED)
    drafting = draft_spec(spec)
    assert drafting is not None
    assert (drafting.source, drafting.kv_dtype) == ("path:/d", "int8")
    assert (drafting.revision, drafting.speculation) == (None, "off")
    assert drafting.file == NO_PROJECTOR, "it reads no images"
    assert draft_spec(cpu_spec("/m")) is None
    assert spec_digest(spec) != spec_digest(cpu_spec("/m", **DRAFTED))


PLAIN = replace(HYBRID, mixers=None)


@each_case(
    ("settings", "config", "drafts_from_text", "words"),
    [
        ({}, PLAIN, False, [""]),
        ({"speculation": "prompt_lookup"}, HYBRID, True, ["prompt lookup, up to 8 tokens a step"]),
        (
            *({"speculation": "auto"}, replace(HYBRID, has_predictor=True), True),
            ["auto: prompt lookup or multi-token prediction", "up to 8 tokens a step"],
        ),
        ({"speculation": "auto"}, HYBRID, True, ["auto: prompt lookup where", "bring no layer"]),
        (
            *({"speculation": "auto", "tensor_parallel": 2}, HYBRID, True),
            ["a divided model has no multi-token prediction"],
        ),
        (DRAFTED, replace(PLAIN, sliding_window=32), False, ["none: ", "sliding window"]),
        (DRAFTED, PLAIN, False, ["draft model path:/d (0.0 MB), up to 8 tokens a step"]),
        ({"speculation": "mtp"}, PLAIN, False, [f"none: {NO_PREDICTOR}"]),
    ],
)
def test_drafts_in_words(
    settings: dict[str, Any], config: ModelConfig, drafts_from_text: bool, words: list[str]
) -> None:
    spec = cpu_spec("/m", **settings)
    assert (choose_speculator(spec) is not None) == drafts_from_text
    found = speculation_in_words(spec, config)
    assert all(part in found for part in words) and bool(found) == bool(settings)


CALMER = 0.3
"""Times the layers' weights: as they are, a change of a hundredth is another model by layer 3."""


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


def built(
    model: OpenedModel, execution: str, native_cache_dir: Path, kv_format: KVFormat | None = None
) -> AnyModel:
    if execution == "torch":
        return build_model(model.config, model.weights, CONTEXT_TOKENS)
    native, words = build_fastest_model(
        model.config, model.weights, CONTEXT_TOKENS, native_cache_dir, kv_format
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
    ("quantization", "dtype", "least_cosine", "most_nats"),
    [
        ("q8", torch.float32, 0.9995, 0.002),
        ("q6", torch.bfloat16, 0.998, 0.01),
        ("q5", torch.float32, 0.99, 0.04),
        ("q4", torch.bfloat16, 0.975, 0.15),
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
    least_cosine: float,
    most_nats: float,
) -> None:
    """The least cosine between their logits, in the mean over tokens."""
    directory = save_calmer(tiny_model_dir, tmp_path / "tiny", dtype)
    token_ids = list(range(3, 99))
    dense, quantized = (
        quality.model_logits(
            built(opened(directory, tmp_path, wanted), execution, native_cache_dir), token_ids
        )
        for wanted in ("auto", quantization)
    )
    assert cosine_similarity(dense, quantized, dim=-1).mean() > least_cosine
    figure = compare(dense.log_softmax(-1).half(), quantized, torch.tensor(token_ids[1:]))
    assert 0 < figure.kl_nats < most_nats


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


def test_a_load_reports_what_quantising_cost(tiny_model_dir: Path, data_dir: Path) -> None:
    spec = cpu_spec(tiny_model_dir, quantization="q8", kv_memory_bytes=4 * 1024**2)
    reported: list[LoadProgress] = []
    report = load_engine(spec, data_dir, reported.append).report
    assert report.quality.startswith("KL 0.") and "q8" in report.quantization
    assert "nats a token against BF16, perplexity " in report.quality.replace("F32", "BF16")
    assert report.quality.endswith(f"on {CONTEXT_TOKENS - 1} tokens")
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


def test_what_changes_the_figure_or_cannot_be_read_is_measured_anew(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    directory = shutil.copytree(tiny_model_dir, tmp_path / "tiny")
    reported: list[LoadProgress] = []
    first = words(opened(directory, tmp_path, "q4"), tmp_path, reported)
    assert [(p.done, p.total) for p in reported] == [(0, 3), (1, 3), (2, 3), (3, 3)]
    (kept,) = (tmp_path / "quality").iterdir()
    for change in ("other bits", "half a figure", "a file written since"):
        if change == "half a figure":
            kept.write_text('{"kl')
        if change == "a file written since":
            os.utime(directory / "model.safetensors", (1, 1))
        reported.clear()
        bits: Quantization = "q8" if change == "other bits" else "q4"
        found = words(opened(directory, tmp_path, bits), tmp_path, reported)
        assert reported and (found == first) == (bits == "q4"), change


def test_why_there_is_no_figure(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotMeasurableError, match="not finite"):
        compare(torch.zeros(1, 5), torch.full((1, 5), torch.nan), torch.tensor([0]))
    model = opened(tiny_model_dir, tmp_path, "q8")
    assert model.unquantized is not None
    mixed = replace(model, unquantized=replace(model.unquantized, weights=model.weights))
    assert words(mixed, tmp_path / "mixed").startswith("KL 0.000"), "they count as they are"
    model = opened(tiny_model_dir, tmp_path, "q4")
    few = words(model, tmp_path, context_tokens=8)
    assert few == "not measured: the fixed text is 8 tokens to this model"
    monkeypatch.setattr(quality, "free_memory_bytes", lambda device: 1000)
    assert words(model, tmp_path) == (
        "not measured: a dense layer beside the model needs 0.00 GB on cpu, and 0.00 GB are free"
    )
    assert words(opened(tiny_model_dir, tmp_path), tmp_path) == "", "dense loads measure nothing"
    assert not (tmp_path / "quality").exists()
