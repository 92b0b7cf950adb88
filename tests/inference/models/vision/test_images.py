"""Models with images, on torch's operators and on the native decoder: token for token what
transformers answers, in float32, whatever happens to a sequence between its tokens."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.engine.engine import Engine
from inference.engine.image_rows import ImageRows
from inference.models.backend import AnyModel
from inference.models.native.model import NativeModel
from inference.models.step_input import ImageEmbeddings
from inference.protocol.images import SequenceImage
from tests.inference.engine.speculation.scripted_speculator import ScriptedSpeculator
from tests.inference.models.families import parity, tiny_hybrid
from tests.inference.models.families.tiny_hybrid import BLOCK_TOKENS
from tests.inference.models.vision.image_models import IMAGE_MODELS
from tests.inference.models.vision.tiny_images import Part, Prompt, TinyModel, submit
from tests.slow_cases import slow_but

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_OUTPUTS = 10
Prompts = dict[str, Prompt]
Answers = dict[str, list[int]]


@pytest.fixture(scope="module", params=IMAGE_MODELS)
def tiny(request: pytest.FixtureRequest) -> TinyModel:
    return IMAGE_MODELS[request.param]


@pytest.fixture(scope="module")
def prompts(tiny: TinyModel) -> Prompts:
    return {which: tiny.prompt(*parts) for which, parts in tiny.parts().items()}


@pytest.fixture(scope="module")
def answers(tiny: TinyModel, prompts: Prompts) -> Answers:
    """transformers', to each of ``prompts``."""
    return {which: tiny.greedy(prompt, NUM_OUTPUTS) for which, prompt in prompts.items()}


@pytest.fixture(scope="module")
def directory(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def on_torch(directory: Path) -> AnyModel:
    return tiny_hybrid.on_torch(directory, directory / "cache")


@pytest.fixture(scope="module")
def natively(directory: Path, library: ctypes.CDLL) -> NativeModel:
    return tiny_hybrid.natively(library, directory, directory / "cache")


@pytest.fixture(params=[pytest.param("on_torch", marks=pytest.mark.slow), "natively"])
def model(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def block_tokens_of(model: AnyModel) -> int:
    return model.decoder.block_tokens if isinstance(model, NativeModel) else BLOCK_TOKENS


def engine_of(tiny: TinyModel, model: AnyModel, **limits: Any) -> Engine:
    return tiny.engine(model, block_tokens=block_tokens_of(model), **limits)


def answered(engine: Engine, prompts: Prompts) -> Answers:
    for which, prompt in prompts.items():
        submit(engine, which, prompt, NUM_OUTPUTS)
    found, _ = tiny_hybrid.run(engine)
    return found


KINDS = ("gemma3", "idefics3", "llava", "qwen3_5_moe", "qwen3_vl")
"""Rows that see each other, tiles, rows of tokens, a hybrid, and images that layers are added."""
each_kind = pytest.mark.parametrize("tiny", slow_but(IMAGE_MODELS, *KINDS), indirect=True)
one_kind = pytest.mark.parametrize("tiny", slow_but(IMAGE_MODELS, "qwen3_vl"), indirect=True)
"""For what the engine does with any image."""


@pytest.mark.parametrize("num_tokens", slow_but([512, 7, 9, 16], 7))
def test_batch_mates_in_chunks(
    tiny: TinyModel, model: AnyModel, prompts: Prompts, answers: Answers, num_tokens: int
) -> None:
    assert model.tower is not None
    engine = engine_of(tiny, model, prefill_tokens_per_step=num_tokens)
    assert answered(engine, prompts) == answers


@each_kind
@pytest.mark.parametrize(
    "order", slow_but([("several", "one"), ("one", "several")], ("several", "one")), ids=str
)
def test_preemption(
    tiny: TinyModel,
    on_torch: AnyModel,
    prompts: Prompts,
    answers: Answers,
    order: tuple[str, ...],
) -> None:
    chosen = {which: prompts[which] for which in order}
    sizes = (len(prompt.token_ids) + NUM_OUTPUTS for prompt in chosen.values())
    num_blocks = sum(-(-size // BLOCK_TOKENS) for size in sizes)
    engine = engine_of(tiny, on_torch, num_kv_blocks=num_blocks - 2)
    assert answered(engine, chosen) == {which: answers[which] for which in order}
    assert engine.stats().num_preemptions > 0


@each_kind
def test_drafts_behind_images(
    tiny: TinyModel, model: AnyModel, prompts: Prompts, answers: Answers
) -> None:
    engine = engine_of(tiny, model, speculator=ScriptedSpeculator(answers, wrong_every=3))
    assert answered(engine, prompts) == answers
    assert engine.stats().num_accepted_drafts > 0


@each_kind
@pytest.mark.parametrize("which", slow_but(["one", "several"], "several"))
def test_prefix_hits_are_of_the_same_image(
    tiny: TinyModel, model: AnyModel, prompts: Prompts, answers: Answers, which: str
) -> None:
    parts, prompt = tiny.parts()[which], prompts[which]
    images = [index for index, part in enumerate(parts) if isinstance(part, tuple)]
    place = len(images) // 2
    other = tiny.prompt(*replaced(parts, images[place], b"4"))
    wanted = tiny.greedy(other, NUM_OUTPUTS)
    assert other.token_ids == prompt.token_ids and wanted != answers[which]
    engine = engine_of(tiny, model, prefill_tokens_per_step=7)
    hits = []
    for given in (prompt, prompt, other, other):
        submit(engine, "it", given, NUM_OUTPUTS)
        found, cached = tiny_hybrid.run(engine)
        assert found == {"it": wanted if given is other else answers[which]}
        hits.append(cached["it"])
    first, again, of_other, other_again = hits
    assert first == 0 and of_other <= other.images[place].first_token
    # A hybrid's state is kept in front of the last of a prompt's blocks.
    block_tokens = block_tokens_of(model)
    assert (
        again == other_again >= len(prompt.token_ids) // block_tokens * block_tokens - BLOCK_TOKENS
    )


@one_kind
def test_no_step_waits_for_more_than_one_image(
    tiny: TinyModel,
    on_torch: AnyModel,
    prompts: Prompts,
    answers: Answers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs: list[int] = []
    run, step = ImageRows.of, Engine.step

    def counted(rows: ImageRows, image: SequenceImage) -> ImageEmbeddings:
        before = rows.num_runs
        found = run(rows, image)
        runs[-1] += rows.num_runs - before
        return found

    def stepped(engine: Engine) -> Any:
        runs.append(0)
        return step(engine)

    monkeypatch.setattr(ImageRows, "of", counted)
    monkeypatch.setattr(Engine, "step", stepped)
    assert answered(engine_of(tiny, on_torch), prompts) == answers
    contents = {image.content_id for prompt in prompts.values() for image in prompt.images}
    assert max(runs) == 1 and sum(runs) == len(contents), "some are in two prompts"


@one_kind
def test_an_image_that_cannot_be_read_fails_its_own_sequence(
    tiny: TinyModel, on_torch: AnyModel, prompts: Prompts, answers: Answers
) -> None:
    engine = engine_of(tiny, on_torch, prefill_tokens_per_step=40)
    submit(engine, "one", prompts["one"], NUM_OUTPUTS)
    broken = replaced(tiny.parts()["one"], 1, b"no number")
    submit(engine, "broken", tiny.prompt(*broken), NUM_OUTPUTS)
    submit(engine, "last", prompts["last"], NUM_OUTPUTS)
    found, _, failed = parity.outcomes(engine)
    assert failed == {"broken": "invalid_image"}
    assert found == {which: answers[which] for which in ("one", "last")}


def test_threads_that_have_blocks_of_rows_each(library: ctypes.CDLL, tmp_path: Path) -> None:
    """Of Gemma 3, whose rows of an image attend to each other."""
    gemma3 = IMAGE_MODELS["gemma3"]
    prompts = {which: gemma3.prompt(*parts) for which, parts in gemma3.parts().items()}
    wanted = {which: gemma3.greedy(prompt, NUM_OUTPUTS) for which, prompt in prompts.items()}
    directory = gemma3.save(tmp_path / "model")
    torch.set_num_threads(3)
    model = tiny_hybrid.natively(library, directory, tmp_path)
    for _ in range(5):
        assert answered(engine_of(gemma3, model), prompts) == wanted


def replaced(parts: list[Part], index: int, data: bytes) -> list[Part]:
    """The image at ``index`` is of the same size, and of another file."""
    return [*parts[:index], (data, *parts[index][1:]), *parts[index + 1 :]]
