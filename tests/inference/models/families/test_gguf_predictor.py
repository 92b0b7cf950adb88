"""The layer of multi-token prediction out of a GGUF file, as llama.cpp's converters write it,
beside the same weights out of safetensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
import torch
from transformers import PreTrainedModel

from inference.engine.engine import Engine
from inference.engine.load.load_engine import load_engine
from inference.engine.speculation import draft_model
from inference.models.decoder import DecoderModel
from inference.models.predictor import TorchPredictor
from inference.models.registry import build_model
from inference.models.step_input import NUM_LONE_STATES, StepInput
from inference.protocol.engine import SubmitSequence
from inference.protocol.load import LoadSpec
from inference.protocol.sampling import SamplingParams
from tests.cases import each_case
from tests.inference.models.families import hybrid_gguf
from tests.inference.models.families import tiny_hybrid as tiny
from tests.inference.models.families.test_hybrid import REFERENCES, prompt_of
from tests.inference.models.families.tiny_predictors import (
    save_glm4_moe,
    save_glm4_moe_gguf,
    save_hybrid,
    save_hybrid_gguf,
)
from tests.slow_cases import slow_but

Saved = Callable[[Path], tuple[Path, Path]]
"""Saves a model into a directory: the safetensors' directory, and the GGUF file."""


def save_both_hybrid(make: Callable[[], PreTrainedModel], directory: Path) -> tuple[Path, Path]:
    save_hybrid(make(), directory)
    return directory, save_hybrid_gguf(make(), directory)


def save_both_glm(directory: Path) -> tuple[Path, Path]:
    return save_glm4_moe(directory), save_glm4_moe_gguf(directory)


KINDS: dict[str, Saved] = {
    **{name: partial(save_both_hybrid, REFERENCES[name]) for name in hybrid_gguf.KINDS},
    "glm4_moe": save_both_glm,
}


@torch.no_grad()
def predicted(source: Path, cache_dir: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """What the model's head reads for a text, and the predictor's logits behind it."""
    files = tiny.opened(source, cache_dir, speculation="mtp")
    assert files.config.has_predictor
    assert "multi-token prediction" not in files.left_out
    model = build_model(files.config, files.weights, tiny.CONTEXT_TOKENS)
    assert isinstance(model, DecoderModel)
    predictor = TorchPredictor(model, files.weights)
    files.close()
    text = prompt_of(37)
    kv = model.new_kv(32, tiny.BLOCK_TOKENS, NUM_LONE_STATES)
    step = StepInput.of_sequence(text[:-1], tiny.BLOCK_TOKENS)
    hidden = model.forward_with_hidden(step, kv)[1]
    step = StepInput.of_sequence(text[1:], tiny.BLOCK_TOKENS)
    rows = predictor.forward(step, hidden, predictor.new_kv(32, tiny.BLOCK_TOKENS))
    return hidden, predictor.logits(rows)


@each_case("name", KINDS)
def test_the_same_as_from_safetensors(name: str, tmp_path: Path) -> None:
    directory, file = KINDS[name](tmp_path / "saved")
    expected, found = (predicted(source, tmp_path / "cache") for source in (directory, file))
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)
    assert found[1].std() > 0.1


def test_left_out_where_it_is_not_asked_for(tmp_path: Path) -> None:
    _, file = save_both_glm(tmp_path / "saved")
    files = tiny.opened(file, tmp_path / "cache")
    files.close()
    assert not files.config.has_predictor
    assert "tensors of multi-token prediction left out" in files.left_out


def test_a_layer_that_is_counted_and_absent(tmp_path: Path) -> None:
    directory = tmp_path / "saved"
    reference = tiny.qwen3_5()
    save_hybrid(reference, directory)
    tiny.save(reference, directory)  # again, without the layer
    file = save_hybrid_gguf(reference, directory)
    found = tiny.opened(file, tmp_path / "cache", speculation="mtp")
    found.close()
    assert not found.config.has_predictor


def answered(engine: Engine) -> dict[str, list[int]]:
    """Greedily, and drawn with a seed."""
    for length in (1, 40):
        tiny.submit(engine, str(length), prompt_of(length), 12)
        name, prompt = f"{length}, drawn", prompt_of(length)
        params = SamplingParams(max_tokens=12, temperature=1.0, seed=length)
        engine.submit(SubmitSequence(sequence_id=name, token_ids=prompt, params=params))
    return tiny.run(engine)[0]


@pytest.mark.parametrize("name", slow_but(KINDS, "qwen3_5_moe", "glm4_moe"))
def test_answers_from_packed_weights(
    name: str, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, file = KINDS[name](tmp_path / "saved")
    monkeypatch.setattr(
        draft_model, "best_length", lambda _n, candidates, _c, _m: min(3, max(candidates)[0])
    )
    spec = LoadSpec(
        job_id="1",
        model="m",
        source=f"path:{file}",
        devices=["cpu"],
        quantization="q8",
        kv_memory_bytes=4_000_000,
    )
    found = []
    for speculation in ("off", "auto", "mtp"):
        spec = msgspec.structs.replace(spec, speculation=speculation)
        loaded = load_engine(spec, data_dir, lambda progress: None, check_when_idle=True)
        if not loaded.report.compiled.startswith("native decoder"):
            pytest.skip(loaded.report.compiled)
        assert isinstance(loaded.engine, Engine)
        found.append(answered(loaded.engine))
        assert (loaded.engine.stats().num_drafted_tokens > 0) == (speculation != "off")
    sleeper = loaded.sleeper
    assert sleeper is not None
    del loaded
    sleeper.fall_asleep()
    found.append(answered(sleeper.wake()))
    assert all(one == found[0] for one in found)
