"""Multi-token prediction beside the formula, written out; and drafts by it through the engine."""

from __future__ import annotations

import ctypes
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
from inference.models.backend import AnyModel, Predictor
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
    run_layer,
    save,
    save_gguf,
    text_model,
    weights_of,
)
from tests.slow_cases import slow_but

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_BLOCKS = 32
NUM_TOKENS = 16
"""The length of an answer."""


def loaded(
    source: Path, cache_dir: Path, library: ctypes.CDLL | None = None
) -> tuple[AnyModel, Predictor]:
    """``library``: of the native decoder; ``None``: on torch's operators."""
    files = tiny.opened(source, cache_dir, speculation="mtp")
    assert files.config.has_predictor and "multi-token prediction" not in files.left_out
    given = files.config, files.weights, tiny.CONTEXT_TOKENS
    model: AnyModel = (
        build_model(*given) if library is None else NativeModel(library, *given, "fp32")
    )
    predictor = build_predictor(model, files.weights)
    files.close()
    return model, predictor


class Subject:
    """A model with its predictor, and the formula beside it."""

    def __init__(self, kind: str, directory: Path, library: ctypes.CDLL | None = None) -> None:
        self.kind = kind
        self.model, self.predictor = loaded(directory, directory / "cache", library)
        self.weights = weights_of(directory, self.model.config)
        self.block_tokens = block_tokens_of(self.model)

    def logits(self, read: torch.Tensor) -> torch.Tensor:
        return read @ self._first_of("mtp.head", "lm_head", "model.embed_tokens").T

    def _first_of(self, *names: str) -> torch.Tensor:
        own = (f"{name}.weight" for name in names)
        return next(self.weights[name] for name in own if name in self.weights)

    @torch.no_grad()
    def hidden(self, token_ids: list[int]) -> torch.Tensor:
        kv = self.model.new_kv(NUM_BLOCKS, self.block_tokens, NUM_LONE_STATES)
        step = StepInput.of_sequence(token_ids, self.block_tokens, logit_rows=ALL_ROWS)
        return self.model.forward_with_hidden(step, kv)[1]

    @torch.no_grad()
    def formula(self, token_ids: list[int], hidden: torch.Tensor) -> torch.Tensor:
        """What the head is to read at i + 1, of each row: ``token_ids`` are those at i + 1."""

        def norm(x: torch.Tensor, name: str) -> torch.Tensor:
            weight = (self.kind == "qwen3_5") + self.weights[f"mtp.{name}.weight"]
            return rms_norm(x, weight.shape, weight, self.model.config.rms_norm_eps)

        table = self._first_of("mtp.embed_tokens", "model.embed_tokens")
        embedded = norm(table[torch.tensor(token_ids)], "pre_fc_norm_embedding")
        both = torch.cat((embedded, norm(hidden, "pre_fc_norm_hidden")), -1)
        return norm(
            run_layer(self.kind, self.weights, both @ self.weights["mtp.fc.weight"].T), "norm"
        )

    @torch.no_grad()
    def drafts(self, token_ids: list[int], length: int) -> list[int]:
        hidden, tokens = self.hidden(token_ids[:-1]), token_ids[1:]
        drafts: list[int] = []
        for _ in range(length):
            read = self.formula([*tokens, *drafts], hidden)
            drafts.append(int(self.logits(read[-1:]).argmax()))
            hidden = torch.cat((hidden, read[-1:]))
        return drafts

    def engine(self, *, drafts: bool, num_kv_blocks: int = 128) -> Engine:
        predictor = self.predictor if drafts else None
        given = {"num_kv_blocks": num_kv_blocks, "prefill_tokens_per_step": 19}
        return tiny.engine_of(self.model, predictor=predictor, **given)


@pytest.fixture(
    scope="module",
    params=product(KINDS, ["torch", "native"]),
    ids="-".join,
)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    kind, path = request.param
    library = request.getfixturevalue("library") if path == "native" else None
    return Subject(kind, save(kind, tmp_path_factory.mktemp("predictor")), library)


@torch.no_grad()
def test_the_formula_and_hidden_rows_that_change_no_logits(subject: Subject) -> None:
    text = prompt_of(37)
    hidden = subject.hidden(text)
    wanted = text_model(subject.kind)(torch.tensor([text])).last_hidden_state[0]
    assert torch.allclose(hidden, wanted, atol=1e-3)
    step = StepInput.of_sequence(text[1:], subject.block_tokens)
    kv = subject.predictor.new_kv(NUM_BLOCKS, subject.block_tokens)
    found = subject.predictor.forward(step, hidden[:-1], kv)
    assert torch.allclose(found, subject.formula(text[1:], hidden[:-1]), atol=1e-3)
    assert torch.allclose(subject.predictor.logits(found), subject.logits(found), atol=1e-3)
    step = StepInput.of_sequence(text, subject.block_tokens, logit_rows=slice(5, None, 31))
    with_hidden, plain = (
        subject.model.new_kv(NUM_BLOCKS, subject.block_tokens, NUM_LONE_STATES) for _ in range(2)
    )
    logits, hidden = subject.model.forward_with_hidden(step, with_hidden)
    assert torch.equal(logits, subject.model.forward(step, plain))
    assert hidden.shape == (37, subject.model.config.hidden_size)


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


def answers(engine: Engine, lengths: tuple[int, ...]) -> dict[str, list[int]]:
    for length in lengths:
        tiny.submit(engine, str(length), prompt_of(length), NUM_TOKENS)
    return tiny.run(engine)[0]


Drafted = tuple[Any, list[int]]
"""The runner, the row and its tokens; and the drafts made for it."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Drafted]:
    """The drafts that are made: of three tokens, whatever they have been worth."""
    found: list[Drafted] = []
    draft = PredictorRunner.draft

    def recorded(self: PredictorRunner, rows: Any) -> list[list[int]]:
        given = draft(self, rows)
        token_ids = [(row, list(row.sequence.token_ids)) for row in rows]
        for (row, before), drafts in zip(token_ids, given, strict=True):
            if drafts:
                found.append(((self, row, before), drafts))
        return given

    monkeypatch.setattr(PredictorRunner, "draft", recorded)
    monkeypatch.setattr(
        draft_model, "best_length", lambda _n, candidates, _c: (min(3, max(candidates)[0]), 2.0)
    )
    return found


def test_drafts_are_those_of_the_formula_and_change_nothing(
    subject: Subject, made: list[Drafted], monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = (1, 28, 30, 31)
    num_kv_blocks = sum(-(-(length + 1) // subject.block_tokens) for length in lengths) + 1
    expected = answers(subject.engine(drafts=False), lengths)
    draft = PredictorRunner.draft

    def at_times_right(self: PredictorRunner, rows: Any) -> list[list[int]]:
        found = draft(self, rows)
        if len(made) % 2:
            return found
        return [
            expected[row.sequence.sequence_id][row.sequence.num_output_tokens :][: row.length]
            for row in rows
        ]

    monkeypatch.setattr(PredictorRunner, "draft", at_times_right)
    engine = subject.engine(drafts=True, num_kv_blocks=num_kv_blocks)
    assert answers(engine, lengths) == expected
    stats = engine.stats()
    assert 0 < stats.num_accepted_drafts < stats.num_drafted_tokens
    assert stats.num_preemptions > 0
    assert len(made) > 10
    for (_, _, token_ids), drafts in made[::3]:
        assert drafts == subject.drafts(token_ids, len(drafts))


def test_a_predictor_that_rests_drafts_for_what_begins_after(
    subject: Subject, made: list[Drafted]
) -> None:
    def drafted() -> set[str]:
        names = {row.sequence.sequence_id for (_, row, _), _ in made}
        made.clear()
        return names

    expected = answers(subject.engine(drafts=False), (20, 33))
    engine = subject.engine(drafts=True)
    assert answers(engine, (33,))["33"] == expected["33"]
    (runner, _, _), _ = made[0]
    assert drafted() == {"33"} and runner.following_s > 0
    runner.rest()
    tiny.submit(engine, "20", prompt_of(20), NUM_TOKENS)
    first = [token for _ in range(4) for one in engine.step().outputs for token in one.token_ids]
    runner.resume()
    assert first + tiny.run(engine)[0]["20"] == expected["20"]
    assert not drafted()
    assert answers(engine, (33,))["33"] == expected["33"]
    assert drafted() == {"33"}


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


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("name", slow_but(NAMES, "qwen3_5_moe", "glm4_moe"))
def test_answers_from_packed_weights(name: str, native_cache_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "data" / "cache").mkdir(parents=True)
    (tmp_path / "data" / "cache" / "native").symlink_to(native_cache_dir)
    file = save_gguf(name, save(name, tmp_path / "saved"))
    found = []
    for speculation in ("off", "auto", "mtp"):
        own = {"quantization": "q8", "kv_memory_bytes": 4_000_000, "speculation": speculation}
        spec = LoadSpec(job_id="1", model="m", source=f"path:{file}", devices=["cpu"], **own)
        loaded = load_engine(spec, tmp_path / "data", lambda progress: None, check_when_idle=True)
        if not loaded.report.compiled.startswith("native decoder"):
            pytest.skip(loaded.report.compiled)
        found.append(answered(loaded.engine))
        assert (loaded.engine.stats().num_drafted_tokens > 0) == (speculation != "off")
    sleeper = loaded.sleeper
    del loaded
    sleeper.fall_asleep()
    found.append(answered(sleeper.wake()))
    assert all(one == found[0] for one in found)
