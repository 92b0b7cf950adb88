"""Which drafts a model is loaded with, a model that makes them among them, and how its report
describes them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from inference.engine.load.drafts import NO_PREDICTOR, choose_speculator, speculation_in_words
from inference.engine.load.load_engine import LoadedEngine, load_engine
from inference.engine.speculation.prompt_lookup import LookupSpeculator
from inference.loading.described import check_shared_vocabulary
from inference.models.config import ModelConfig
from inference.protocol.load import NO_PROJECTOR, LoadSpec, draft_spec, spec_digest
from inference.protocol.load_errors import OtherVocabularyError
from tests.cases import each_case
from tests.inference.engine.asking import answer_of, cpu_spec
from tests.inference.engine.load.test_kv_memory import HYBRID


def spec_of(model_dir: Path, draft_dir: Path | None = None, **settings: object) -> LoadSpec:
    drafting = {}
    if draft_dir is not None:
        drafting = {"speculation": "draft_model", "draft_model": f"path:{draft_dir}"}
    return cpu_spec(model_dir, kv_memory_bytes=4_000_000, **drafting, **settings)


def tokens(loaded: LoadedEngine) -> list[int]:
    return answer_of(loaded, [1, 2, 3], 30)


def test_it_is_loaded_beside_the_model_and_counted(tiny_model_dir: Path, data_dir: Path) -> None:
    def loaded(spec: LoadSpec) -> LoadedEngine:
        return load_engine(spec, data_dir, lambda progress: None)

    plain = loaded(spec_of(tiny_model_dir))
    drafting = loaded(spec_of(tiny_model_dir, tiny_model_dir, max_draft_tokens=4))
    assert tokens(drafting) == tokens(plain)
    ours, theirs = drafting.report, plain.report
    assert "draft model path:" in ours.speculation and "up to 4 tokens" in ours.speculation
    assert ours.weight_bytes == 2 * theirs.weight_bytes
    assert ours.num_kv_blocks == theirs.num_kv_blocks // 2
    assert abs(ours.kv_bytes - theirs.kv_bytes) <= 2 * theirs.kv_bytes // theirs.num_kv_blocks
    assert ours.estimated_bytes > theirs.estimated_bytes


def test_one_of_another_vocabulary_is_refused_by_name(
    tiny_model_dir: Path, data_dir: Path, tmp_path: Path
) -> None:
    other_dir = tmp_path / "other"
    shutil.copytree(tiny_model_dir, other_dir)
    file = other_dir / "tokenizer.json"
    definition = json.loads(file.read_text())
    vocabulary = definition["model"]["vocab"]
    vocabulary["Q"], vocabulary["q"] = vocabulary["q"], vocabulary["Q"]
    file.write_text(json.dumps(definition))
    with pytest.raises(OtherVocabularyError, match="another vocabulary: token"):
        load_engine(spec_of(tiny_model_dir, other_dir), data_dir, lambda progress: None)


def test_what_fills_up_a_vocabulary_does_not_count(tiny_model_dir: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_model_dir / "tokenizer.json"))
    tokenizer.add_tokens(["<pad0>", "<pad1>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    check_shared_vocabulary(tiny_model_dir, tmp_path, "d")
    check_shared_vocabulary(tmp_path, tiny_model_dir, "d")


def test_its_spec_is_the_models_but_for_the_files(tiny_model_dir: Path) -> None:
    spec = spec_of(tiny_model_dir, tiny_model_dir / "d", kv_dtype="int8", file="x", revision="2")
    drafting = draft_spec(spec)
    assert drafting is not None
    assert (drafting.source, drafting.kv_dtype) == (f"path:{tiny_model_dir / 'd'}", "int8")
    assert (drafting.revision, drafting.speculation) == (None, "off")
    assert drafting.file == NO_PROJECTOR, "it reads no images"
    assert draft_spec(spec_of(tiny_model_dir)) is None
    assert spec_digest(spec) != spec_digest(spec_of(tiny_model_dir, tiny_model_dir))


DRAFTED = {"speculation": "draft_model", "draft_model": "path:/d"}
PLAIN = replace(HYBRID, mixers=None)


@each_case(
    ("settings", "config", "drafts_from_text", "words"),
    [
        ({}, PLAIN, False, ""),
        ({"speculation": "prompt_lookup"}, HYBRID, True, "prompt lookup, up to 8 tokens a step"),
        (
            *({"speculation": "auto"}, replace(HYBRID, has_predictor=True), True),
            "auto: prompt lookup or multi-token prediction, whichever pays, up to 8 tokens a step",
        ),
        (
            *({"speculation": "auto"}, HYBRID, True),
            "auto: prompt lookup where it pays, up to 8 tokens a step; the model's files bring no "
            "layer of multi-token prediction that is known",
        ),
        (
            *({"speculation": "auto", "tensor_parallel": 2}, HYBRID, True),
            "auto: prompt lookup where it pays, up to 8 tokens a step; a divided model has no "
            "multi-token prediction",
        ),
        (
            *(DRAFTED, replace(PLAIN, sliding_window=32), False),
            "none: blocks that this model's sliding window has passed are not there to be drafted "
            "from",
        ),
        (DRAFTED, PLAIN, False, "draft model path:/d (0.0 MB), up to 8 tokens a step"),
        ({"speculation": "mtp"}, PLAIN, False, f"none: {NO_PREDICTOR}"),
    ],
)
def test_drafts_in_words(
    settings: dict[str, Any], config: ModelConfig, drafts_from_text: bool, words: str
) -> None:
    spec = LoadSpec(job_id="1", model="m", source="path:/m", **settings)
    assert (choose_speculator(spec) is not None) == drafts_from_text
    assert speculation_in_words(spec, config) == words


def test_a_model_that_was_asked_for_it_drafts(tiny_model_dir: Path, data_dir: Path) -> None:
    spec = cpu_spec(
        tiny_model_dir, kv_memory_bytes=4_000_000, speculation="prompt_lookup", max_draft_tokens=4
    )
    loaded = load_engine(spec, data_dir, lambda progress: None)
    assert loaded.report.speculation == "prompt lookup, up to 4 tokens a step"
    engine = loaded.engine
    assert isinstance(engine.scheduler.speculator, LookupSpeculator)  # type: ignore[union-attr]
    few_words = dict.fromkeys((5, 6, 7), 100.0)
    assert len(answer_of(loaded, [1, 2, 3], 30, logit_bias=few_words)) == 30
    assert engine.stats().num_drafted_tokens > 0
