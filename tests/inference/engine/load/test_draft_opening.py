"""A model that is loaded with another one to make its drafts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from inference.engine.engine import Engine
from inference.engine.load.load_engine import LoadedEngine, load_engine
from inference.loading.draft_check import check_shared_vocabulary
from inference.protocol.engine import SequenceStep, SubmitSequence
from inference.protocol.load import NO_PROJECTOR, LoadSpec, draft_spec, spec_digest
from inference.protocol.load_errors import OtherVocabularyError
from inference.protocol.sampling import SamplingParams


def spec_of(model_dir: Path, draft_dir: Path | None = None, **settings: object) -> LoadSpec:
    drafting = {}
    if draft_dir is not None:
        drafting = {"speculation": "draft_model", "draft_model": f"path:{draft_dir}"}
    return LoadSpec(
        job_id="1",
        model="m",
        source=f"path:{model_dir}",
        devices=["cpu"],
        kv_memory_bytes=4_000_000,
        **drafting,  # type: ignore[arg-type]
        **settings,  # type: ignore[arg-type]
    )


def tokens(loaded: LoadedEngine) -> list[int]:
    engine = loaded.engine
    assert isinstance(engine, Engine)
    params = SamplingParams(max_tokens=30, temperature=0.0)
    engine.submit(SubmitSequence(sequence_id="a", token_ids=[1, 2, 3], params=params))
    found: list[int] = []
    while engine.has_work:
        for output in engine.step().outputs:
            assert isinstance(output, SequenceStep)
            found += output.token_ids
    return found


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


def test_one_that_is_not_there_refuses_the_load(tiny_model_dir: Path, data_dir: Path) -> None:
    spec = spec_of(tiny_model_dir, tiny_model_dir / "none")
    with pytest.raises(Exception, match="does not exist"):
        load_engine(spec, data_dir, lambda progress: None)


def test_its_spec_is_the_models_but_for_the_files(tiny_model_dir: Path) -> None:
    spec = spec_of(tiny_model_dir, tiny_model_dir / "d", kv_dtype="int8", file="x", revision="2")
    drafting = draft_spec(spec)
    assert drafting is not None
    assert (drafting.source, drafting.kv_dtype) == (f"path:{tiny_model_dir / 'd'}", "int8")
    assert (drafting.revision, drafting.speculation) == (None, "off")
    assert drafting.file == NO_PROJECTOR, "it reads no images"
    assert draft_spec(spec_of(tiny_model_dir)) is None
    assert spec_digest(spec) != spec_digest(spec_of(tiny_model_dir, tiny_model_dir))
