"""Which drafts a model is loaded with, and how its report describes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from inference.engine.load.drafts import choose_speculator, speculation_in_words
from inference.engine.load.load_engine import load_engine
from inference.engine.speculation.speculator import LookupSpeculator
from inference.protocol.engine import SequenceStep, SubmitSequence
from inference.protocol.load import LoadSpec
from inference.protocol.sampling import SamplingParams
from tests.inference.engine.load.test_state_plan import CONFIG as HYBRID


def spec_of(**settings: object) -> LoadSpec:
    return LoadSpec(job_id="1", model="m", source="path:/m", **settings)  # type: ignore[arg-type]


def test_no_drafts_by_default() -> None:
    plain = replace(HYBRID, mixers=None)
    assert choose_speculator(spec_of(), plain) is None
    assert speculation_in_words(spec_of(), plain) == ""


def test_recurrent_layers_have_them_too() -> None:
    spec = spec_of(speculation="prompt_lookup")
    assert isinstance(choose_speculator(spec, HYBRID), LookupSpeculator)
    assert "up to 8" in speculation_in_words(spec, HYBRID)


def test_automatic_speculation_names_its_origins() -> None:
    spec = spec_of(speculation="auto")
    assert isinstance(choose_speculator(spec, HYBRID), LookupSpeculator)
    assert speculation_in_words(spec, replace(HYBRID, has_predictor=True)) == (
        "auto: prompt lookup or multi-token prediction, whichever pays, up to 8 tokens a step"
    )
    alone = speculation_in_words(spec, HYBRID)
    assert alone.startswith("auto: prompt lookup where it pays, up to 8 tokens a step; the model's")
    divided = speculation_in_words(spec_of(speculation="auto", tensor_parallel=2), HYBRID)
    assert divided.endswith("a divided model has no multi-token prediction")


def test_a_sliding_window_has_no_draft_model_and_the_report_names_the_reason() -> None:
    windowed = replace(HYBRID, mixers=None, sliding_window=32)
    spec = spec_of(speculation="draft_model", draft_model="path:/d")
    assert "none: " in speculation_in_words(spec, windowed)
    assert "window" in speculation_in_words(spec, windowed)
    assert "path:/d" in speculation_in_words(spec, replace(HYBRID, mixers=None))


def test_a_model_that_was_asked_for_it_drafts(tiny_model_dir: Path, data_dir: Path) -> None:
    spec = LoadSpec(
        job_id="1",
        model="m",
        source=f"path:{tiny_model_dir}",
        devices=["cpu"],
        kv_memory_bytes=4_000_000,
        speculation="prompt_lookup",
        max_draft_tokens=4,
    )
    loaded = load_engine(spec, data_dir, lambda progress: None)
    assert loaded.report.speculation == "prompt lookup, up to 4 tokens a step"
    engine = loaded.engine
    assert isinstance(engine.scheduler.speculator, LookupSpeculator)  # type: ignore[union-attr]
    few_words = dict.fromkeys((5, 6, 7), 100.0)
    params = SamplingParams(max_tokens=30, temperature=0.0, logit_bias=few_words)
    engine.submit(SubmitSequence(sequence_id="a", token_ids=[1, 2, 3], params=params))
    num_tokens = 0
    while engine.has_work:
        for output in engine.step().outputs:
            assert isinstance(output, SequenceStep)
            num_tokens += len(output.token_ids)
    assert num_tokens == 30
    assert engine.stats().num_drafted_tokens > 0
