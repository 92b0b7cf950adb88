"""Multi-token prediction beside the formula, written out; and drafts by it through the engine."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import rms_norm

from inference.engine.engine import Engine
from inference.engine.load.load_engine import load_engine
from inference.engine.speculation import draft_model
from inference.engine.speculation.draft_runner import PredictorRunner
from inference.models.backend import AnyModel, AnyPredictor
from inference.models.decoder import DecoderModel
from inference.models.native.model import NativeModel
from inference.models.registry import build_model, build_predictor
from inference.models.step_input import ALL_ROWS, NUM_LONE_STATES, StepInput
from inference.protocol.engine import SamplingParams, SubmitSequence
from inference.protocol.load import LoadSpec
from tests.cases import each_case
from tests.inference.models.families import tiny_hybrid as tiny
from tests.inference.models.families.parity import block_tokens_of
from tests.inference.models.families.test_hybrid import prompt_of
from tests.inference.models.families.tiny_predictors import (
    KINDS,
    NAMES,
    Kind,
    Weights,
    save,
    save_gguf,
    weights_of,
)
from tests.slow_cases import slow_but

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_BLOCKS = 32
NUM_TOKENS = 16
"""The length of an answer."""


@dataclass(frozen=True)
class Subject:
    kind: Kind
    model: AnyModel
    predictor: AnyPredictor
    weights: Weights

    @property
    def block_tokens(self) -> int:
        return block_tokens_of(self.model)

    def embedded(self, token_ids: torch.Tensor) -> torch.Tensor:
        own, table = "mtp.embed_tokens.weight", "model.embed_tokens.weight"
        return self.weights[own if own in self.weights else table][token_ids]

    def logits(self, read: torch.Tensor) -> torch.Tensor:
        names = "mtp.head.weight", "lm_head.weight", "model.embed_tokens.weight"
        return read @ next(self.weights[name] for name in names if name in self.weights).T


def loaded(
    source: Path, cache_dir: Path, library: ctypes.CDLL | None = None
) -> tuple[AnyModel, AnyPredictor]:
    """``library``: of the native decoder; ``None``: on torch's operators."""
    files = tiny.opened(source, cache_dir, speculation="mtp")
    assert files.config.has_predictor and "multi-token prediction" not in files.left_out
    model: AnyModel = (
        build_model(files.config, files.weights, tiny.CONTEXT_TOKENS)
        if library is None
        else NativeModel(library, files.config, files.weights, tiny.CONTEXT_TOKENS, "fp32")
    )
    predictor = build_predictor(model, files.weights)
    files.close()
    return model, predictor


def subject_of(kind: Kind, directory: Path, library: ctypes.CDLL | None = None) -> Subject:
    model, predictor = loaded(directory, directory / "cache", library)
    return Subject(kind, model, predictor, weights_of(directory, model.config))


@pytest.fixture(
    scope="module",
    params=product(KINDS, ["torch", "native"]),
    ids=lambda one: f"{one[0].name}-{one[1]}",
)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    kind, path = request.param
    library = request.getfixturevalue("library") if path == "native" else None
    return subject_of(kind, save(kind.name, tmp_path_factory.mktemp("predictor")), library)


@torch.no_grad()
def hidden_of(subject: Subject, token_ids: list[int]) -> torch.Tensor:
    kv = subject.model.new_kv(NUM_BLOCKS, subject.block_tokens, NUM_LONE_STATES)
    step = StepInput.of_sequence(token_ids, subject.block_tokens, logit_rows=ALL_ROWS)
    return subject.model.forward_with_hidden(step, kv)[1]


@torch.no_grad()
def by_formula(subject: Subject, token_ids: list[int], hidden: torch.Tensor) -> torch.Tensor:
    """What the head is to read at i + 1, of each row: ``token_ids`` are those at i + 1."""
    config, weights, kind = subject.model.config, subject.weights, subject.kind

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        weight = kind.norm_offset + weights[f"mtp.{name}.weight"]
        return rms_norm(x, weight.shape, weight, config.rms_norm_eps)

    embedded = norm(subject.embedded(torch.tensor(token_ids)), "pre_fc_norm_embedding")
    x = torch.cat((embedded, norm(hidden, "pre_fc_norm_hidden")), -1) @ weights["mtp.fc.weight"].T
    return norm(kind.layer(weights, x), "norm")


@torch.no_grad()
def drafts_by_formula(subject: Subject, token_ids: list[int], length: int) -> list[int]:
    hidden, tokens = hidden_of(subject, token_ids[:-1]), token_ids[1:]
    drafts: list[int] = []
    for _ in range(length):
        read = by_formula(subject, [*tokens, *drafts], hidden)
        drafts.append(int(subject.logits(read[-1:]).argmax()))
        hidden = torch.cat((hidden, read[-1:]))
    return drafts


@torch.no_grad()
def test_the_formula_and_hidden_rows_that_change_no_logits(subject: Subject) -> None:
    text = prompt_of(37)
    hidden = hidden_of(subject, text)
    assert torch.allclose(hidden, subject.kind.hidden(torch.tensor([text])), atol=1e-3)
    step = StepInput.of_sequence(text[1:], subject.block_tokens)
    kv = subject.predictor.new_kv(NUM_BLOCKS, subject.block_tokens)
    found = subject.predictor.forward(step, hidden[:-1], kv)
    assert torch.allclose(found, by_formula(subject, text[1:], hidden[:-1]), atol=1e-3)
    assert torch.allclose(subject.predictor.logits(found), subject.logits(found), atol=1e-3)
    step = StepInput.of_sequence(text, subject.block_tokens, logit_rows=slice(5, None, 31))
    with_hidden, plain = (
        subject.model.new_kv(NUM_BLOCKS, subject.block_tokens, NUM_LONE_STATES) for _ in range(2)
    )
    logits, hidden = subject.model.forward_with_hidden(step, with_hidden)
    assert torch.equal(logits, subject.model.forward(step, plain))
    assert hidden.shape == (37, subject.model.config.hidden_size)


def test_what_the_files_lack_is_the_models_own(tmp_path: Path) -> None:
    directory = save("glm4_moe", tmp_path)
    file = directory / "model.safetensors"
    weights = load_file(file)
    for name in ("embed_tokens", "shared_head.head"):
        del weights[f"model.layers.2.{name}.weight"]
    save_file(weights, file, {"format": "pt"})
    found = subject_of(KINDS[1], directory)
    rows = torch.randn(3, 32, generator=torch.Generator().manual_seed(1))
    assert isinstance(found.model, DecoderModel)
    assert torch.equal(found.predictor.logits(rows), found.model.logits(rows))
    drafts = answers(engine_of(found, drafts=True), (20,))
    assert drafts == answers(engine_of(found, drafts=False), (20,))


def test_layers_that_are_left_out(tmp_path: Path) -> None:
    """All where none is asked for, those behind the first, and one that is counted and absent."""
    directory = save("glm4_moe", tmp_path / "saved")
    file = save_gguf("glm4_moe", directory)
    for source in (directory, file):
        found = tiny.opened(source, tmp_path / "cache")
        found.close()
        assert not found.config.has_predictor
        assert "tensors of multi-token prediction left out" in found.left_out
    weights = directory / "model.safetensors"
    beyond = {"model.layers.3.enorm.weight": torch.ones(32)}
    save_file(load_file(weights) | beyond, weights, {"format": "pt"})
    found = tiny.opened(directory, tmp_path / "cache", speculation="mtp")
    found.close()
    assert found.config.has_predictor
    assert found.left_out == "1 tensors of multi-token prediction left out"
    tiny.save(tiny.qwen3_5(), tmp_path / "without")
    file = save_gguf("qwen3_5", tmp_path / "without")
    found = tiny.opened(file, tmp_path / "cache", speculation="mtp")
    found.close()
    assert not found.config.has_predictor


def engine_of(subject: Subject, *, drafts: bool, num_kv_blocks: int = 128) -> Engine:
    return tiny.engine_of(
        subject.model,
        num_kv_blocks=num_kv_blocks,
        prefill_tokens_per_step=19,
        predictor=subject.predictor if drafts else None,
    )


def answers(engine: Engine, lengths: tuple[int, ...]) -> dict[str, list[int]]:
    for length in lengths:
        tiny.submit(engine, str(length), prompt_of(length), NUM_TOKENS)
    return tiny.run(engine)[0]


@pytest.fixture
def longest_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts of three tokens, whatever they have been worth."""
    monkeypatch.setattr(
        draft_model, "best_length", lambda _n, candidates, _c, _m: min(3, max(candidates)[0])
    )


@pytest.mark.usefixtures("longest_drafts")
def test_drafts_are_those_of_the_formula_and_change_nothing(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = (1, 28, 30, 31)
    num_kv_blocks = sum(-(-(length + 1) // subject.block_tokens) for length in lengths) + 1
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
    engine = engine_of(subject, drafts=True, num_kv_blocks=num_kv_blocks)
    assert answers(engine, lengths) == expected
    stats = engine.stats()
    assert 0 < stats.num_accepted_drafts < stats.num_drafted_tokens
    assert stats.num_preemptions > 0
    assert len(made) > 10
    for token_ids, drafts in made[::3]:
        assert drafts == drafts_by_formula(subject, token_ids, len(drafts))


@pytest.mark.usefixtures("longest_drafts")
def test_a_predictor_that_rests_drafts_for_what_begins_after(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = answers(engine_of(subject, drafts=False), (20, 33))
    runners: list[PredictorRunner] = []
    drafted: set[str] = set()
    draft = PredictorRunner.draft

    def recorded(self: PredictorRunner, rows: Any) -> list[list[int]]:
        runners[:] = [self]
        found = draft(self, rows)
        drafted.update(
            row.sequence.sequence_id for row, ids in zip(rows, found, strict=True) if ids
        )
        return found

    monkeypatch.setattr(PredictorRunner, "draft", recorded)
    engine = engine_of(subject, drafts=True)
    assert answers(engine, (33,))["33"] == expected["33"]
    assert drafted == {"33"} and runners[0].following_s > 0
    runners[0].rest()
    drafted.clear()
    tiny.submit(engine, "20", prompt_of(20), NUM_TOKENS)
    first = [token for _ in range(4) for token in tokens_of(engine.step().outputs)]
    runners[0].resume()
    assert first + tiny.run(engine)[0]["20"] == expected["20"]
    assert not drafted
    assert answers(engine, (33,))["33"] == expected["33"]
    assert drafted == {"33"}


def tokens_of(outputs: list[Any]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


@each_case("name", NAMES)
@torch.no_grad()
def test_gguf_is_the_same_as_safetensors(name: str, tmp_path: Path) -> None:
    text, found = prompt_of(37), []
    directory = save(name, tmp_path / "saved")
    for source in (directory, save_gguf(name, directory)):
        model, predictor = loaded(source, tmp_path / "cache")
        kv = model.new_kv(32, tiny.BLOCK_TOKENS, NUM_LONE_STATES)
        step = StepInput.of_sequence(text[:-1], tiny.BLOCK_TOKENS)
        hidden = model.forward_with_hidden(step, kv)[1]
        step = StepInput.of_sequence(text[1:], tiny.BLOCK_TOKENS)
        rows = predictor.forward(step, hidden, predictor.new_kv(32, tiny.BLOCK_TOKENS))
        found.append((hidden, predictor.logits(rows)))
    torch.testing.assert_close(*found, atol=1e-3, rtol=1e-3)
    assert found[1][1].std() > 0.1


def answered(engine: Engine) -> dict[str, list[int]]:
    """Greedily, and drawn with a seed."""
    for length in (1, 40):
        tiny.submit(engine, str(length), prompt_of(length), 12)
        name, prompt = f"{length}, drawn", prompt_of(length)
        params = SamplingParams(max_tokens=12, temperature=1.0, seed=length)
        engine.submit(SubmitSequence(sequence_id=name, token_ids=prompt, params=params))
    return tiny.run(engine)[0]


@pytest.mark.usefixtures("longest_drafts")
@pytest.mark.parametrize("name", slow_but(NAMES, "qwen3_5_moe", "glm4_moe"))
def test_answers_from_packed_weights(name: str, data_dir: Path, tmp_path: Path) -> None:
    file = save_gguf(name, save(name, tmp_path / "saved"))
    found = []
    for speculation in ("off", "auto", "mtp"):
        spec = LoadSpec(
            job_id="1",
            model="m",
            source=f"path:{file}",
            devices=["cpu"],
            quantization="q8",
            kv_memory_bytes=4_000_000,
            speculation=speculation,
        )
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
