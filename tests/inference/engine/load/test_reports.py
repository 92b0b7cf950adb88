"""Which drafts a model is loaded with, a model that makes them among them, and how its report
describes them. What quantising cost, where a model is quantised while it loads."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from inference.engine.load import quality
from inference.engine.load.built_model import NO_PREDICTOR, choose_speculator, speculation_in_words
from inference.engine.load.load_engine import load_engine
from inference.engine.load.quality import NotMeasurableError, compare, quality_in_words
from inference.loading.described import check_shared_vocabulary
from inference.loading.loader import OpenedModel, open_model
from inference.models.registry import build_model
from inference.protocol.load import NO_PROJECTOR, Quantization, draft_spec, spec_digest
from inference.protocol.load_errors import OtherVocabularyError
from inference.protocol.load_report import LoadProgress
from tests.inference.engine.conftest import CONTEXT_TOKENS, answer_of, cpu_spec
from tests.inference.engine.load.test_kv_memory import HYBRID

DRAFTED: dict[str, Any] = {"speculation": "draft_model", "draft_model": "path:/d"}


@pytest.mark.usefixtures("drafts_cost_nothing")
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


def test_drafts_in_words() -> None:
    for settings, config, drafts_from_text, words in (
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
    ):
        spec = cpu_spec("/m", **settings)
        assert (choose_speculator(spec) is not None) == drafts_from_text
        found = speculation_in_words(spec, config)
        assert all(part in found for part in words) and bool(found) == bool(settings)


def opened(source: Path, tmp_path: Path, quantization: Quantization = "auto") -> OpenedModel:
    spec = cpu_spec(source, quantization=quantization)
    return open_model(spec, tmp_path / "models", lambda _: None)


def words(
    model: OpenedModel,
    tmp_path: Path,
    reported: list[LoadProgress] | None = None,
    context_tokens: int = CONTEXT_TOKENS,
) -> str:
    return quality_in_words(
        model,
        build_model(model.config, model.weights, CONTEXT_TOKENS),
        "torch operators",
        context_tokens=context_tokens,
        cache_dir=tmp_path / "quality",
        on_progress=[].append if reported is None else reported.append,
    )


def test_the_comparison_is_the_textbooks() -> None:
    generator, nn = torch.Generator().manual_seed(2), torch.nn.functional
    dense = torch.randn(70, 9, generator=generator).double().log_softmax(-1)
    ours = torch.randn(70, 9, generator=generator).double()
    next_ids = torch.randint(9, (70,), generator=generator)
    figure = compare(dense, ours, next_ids)
    kl = nn.kl_div(ours.log_softmax(-1), dense, log_target=True, reduction="batchmean")
    assert figure.num_tokens == 70
    assert figure.kl_nats == pytest.approx(float(kl), rel=1e-4)
    for found, nats in (
        (figure.quantized_perplexity, nn.cross_entropy(ours, next_ids)),
        (figure.dense_perplexity, nn.nll_loss(dense, next_ids)),
    ):
        assert found == pytest.approx(float(nats.exp()), rel=1e-4)
    assert compare(dense, dense, next_ids).kl_nats == pytest.approx(0, abs=1e-6)
    with pytest.raises(NotMeasurableError, match="not finite"):
        compare(torch.zeros(1, 5), torch.full((1, 5), torch.nan), torch.tensor([0]))


def test_a_load_reports_what_quantising_cost(tiny_model_dir: Path, data_dir: Path) -> None:
    spec = cpu_spec(tiny_model_dir, quantization="q8", kv_memory_bytes=4 * 1024**2)
    measuring, reported = "measuring what quantising cost", list[LoadProgress]()
    report = load_engine(spec, data_dir, reported.append).report
    assert report.quality.startswith("KL 0.") and "q8" in report.quantization
    assert "nats a token against F32, perplexity " in report.quality
    assert report.quality.endswith(f"on {CONTEXT_TOKENS - 1} tokens")
    assert report.weight_bytes < 1.2 * report.num_parameters
    details = list(dict.fromkeys(p.detail for p in reported))
    assert details.index("quantising to q8") < details.index(measuring)
    reported.clear()
    assert load_engine(spec, data_dir, reported.append).report.quality == report.quality
    assert measuring not in {p.detail for p in reported}


def test_what_changes_the_figure_or_cannot_be_read_is_measured_anew(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    directory = shutil.copytree(tiny_model_dir, tmp_path / "tiny")
    reported: list[LoadProgress] = []
    first = words(opened(directory, tmp_path, "q4"), tmp_path, reported)
    assert [(p.done, p.total) for p in reported] == [(0, 3), (1, 3), (2, 3), (3, 3)]
    (kept,) = (tmp_path / "quality").iterdir()
    changes: list[tuple[Quantization, Callable[[], object]]] = [
        ("q8", lambda: None),
        ("q4", lambda: kept.write_text('{"kl')),
        ("q4", lambda: os.utime(directory / "model.safetensors", (1, 1))),
    ]
    for bits, change in changes:
        change()
        reported.clear()
        found = words(opened(directory, tmp_path, bits), tmp_path, reported)
        assert reported and (found == first) == (bits == "q4")


def test_why_there_is_no_figure(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
