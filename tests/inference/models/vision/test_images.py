"""Models with images, on torch's operators and on the native decoder: token for token what
transformers answers, in float32, whatever happens to a sequence between its tokens."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.engine.engine import Engine
from inference.models.backend import AnyModel
from tests.inference.engine.speculation.scripted_speculator import ScriptedSpeculator
from tests.inference.models.families import parity, tiny_hybrid
from tests.inference.models.families.tiny_hybrid import BLOCK_TOKENS
from tests.inference.models.vision.image_models import IMAGE_MODELS
from tests.inference.models.vision.tiny_images import Part, Prompt, TinyModel, submit

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_OUTPUTS = 10


@dataclass(frozen=True)
class Subject:
    tiny: TinyModel
    model: AnyModel
    prompts: dict[str, Prompt]
    answers: dict[str, list[int]]
    """transformers', to each of ``prompts``."""

    def engine(self, **limits: Any) -> Engine:
        return self.tiny.engine(self.model, **limits)

    def check(self, engine: Engine, *chosen: str) -> None:
        """Checks the answers to ``chosen`` prompts, or to all."""
        for which in chosen or self.prompts:
            submit(engine, which, self.prompts[which], NUM_OUTPUTS)
        found, _ = tiny_hybrid.run(engine)
        assert found == {which: self.answers[which] for which in chosen or self.prompts}


@pytest.fixture(scope="module")
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    name, is_native = request.param
    library = request.getfixturevalue("library") if is_native else None
    return subject_of(name, tmp_path_factory.mktemp("model"), library)


def subject_of(name: str, directory: Path, library: ctypes.CDLL | None) -> Subject:
    """``library``: of the native decoder; ``None``: on torch's operators."""
    tiny = IMAGE_MODELS[name]
    tiny.save(directory)
    prompts = {which: tiny.prompt(*parts) for which, parts in tiny.parts().items()}
    return Subject(
        tiny=tiny,
        model=tiny_hybrid.on_torch(directory, directory / "cache")
        if library is None
        else tiny_hybrid.natively(library, directory, directory / "cache"),
        prompts=prompts,
        answers={which: tiny.greedy(prompt, NUM_OUTPUTS) for which, prompt in prompts.items()},
    )


def subjects(names: Iterable[str], *paths: str, slow: Iterable[str] = ()) -> Any:
    """``slow``: paths that are tried in the slow part only, as are models but for ``names``."""
    return pytest.mark.parametrize(
        "subject",
        [
            pytest.param(
                (name, path == "natively"),
                id=f"{name}-{path}",
                marks=[pytest.mark.slow] if name not in names or path in slow else [],
            )
            for name in IMAGE_MODELS
            for path in (*paths, *slow)
        ],
        indirect=True,
    )


KINDS = ("gemma3", "idefics3", "llava", "qwen3_5_moe", "qwen3_vl")
"""Rows that see each other, tiles, rows of tokens, a hybrid, and images that layers are added."""


@subjects(IMAGE_MODELS, "natively", slow=["on torch"])
def test_batch_mates_in_chunks(subject: Subject) -> None:
    assert subject.model.tower is not None
    subject.check(subject.engine(prefill_tokens_per_step=7))


@subjects(KINDS, "on torch")
def test_preemption(subject: Subject) -> None:
    chosen = ("several", "one")
    sizes = (len(subject.prompts[which].token_ids) + NUM_OUTPUTS for which in chosen)
    num_blocks = sum(-(-size // BLOCK_TOKENS) for size in sizes)
    engine = subject.engine(num_kv_blocks=num_blocks - 2)
    subject.check(engine, *chosen)
    assert engine.stats().num_preemptions > 0


@subjects(KINDS, "natively", slow=["on torch"])
def test_drafts_behind_images(subject: Subject) -> None:
    engine = subject.engine(speculator=ScriptedSpeculator(subject.answers, wrong_every=3))
    subject.check(engine)
    assert engine.stats().num_accepted_drafts > 0


@subjects(KINDS, "natively", slow=["on torch"])
def test_prefix_hits_are_of_the_same_image(subject: Subject) -> None:
    tiny, prompt, answer = subject.tiny, subject.prompts["several"], subject.answers["several"]
    parts = tiny.parts()["several"]
    second = [index for index, part in enumerate(parts) if isinstance(part, tuple)][1]
    other = tiny.prompt(*replaced(parts, second, b"4"))
    wanted = tiny.greedy(other, NUM_OUTPUTS)
    assert other.token_ids == prompt.token_ids and wanted != answer
    engine, hits = subject.engine(prefill_tokens_per_step=7), []
    for given in (prompt, prompt, other, other):
        submit(engine, "it", given, NUM_OUTPUTS)
        found, cached = tiny_hybrid.run(engine)
        assert found == {"it": wanted if given is other else answer}
        hits.append(cached["it"])
    first, again, of_other, other_again = hits
    assert first == 0 and of_other <= other.images[1].first_token
    # A hybrid's state is kept in front of the last of a prompt's blocks.
    block_tokens = parity.block_tokens_of(subject.model)
    whole = len(prompt.token_ids) // block_tokens * block_tokens
    assert again == other_again >= whole - BLOCK_TOKENS


@subjects(["qwen3_vl"], "on torch")
def test_an_image_that_cannot_be_read_fails_its_own_sequence(subject: Subject) -> None:
    engine = subject.engine(prefill_tokens_per_step=40)
    broken = replaced(subject.tiny.parts()["one"], 1, b"no number")
    submit(engine, "one", subject.prompts["one"], NUM_OUTPUTS)
    submit(engine, "broken", subject.tiny.prompt(*broken), NUM_OUTPUTS)
    submit(engine, "last", subject.prompts["last"], NUM_OUTPUTS)
    found, _, failed = parity.outcomes(engine)
    assert failed == {"broken": "invalid_image"}
    assert found == {which: subject.answers[which] for which in ("one", "last")}


def test_threads_that_have_blocks_of_rows_each(library: ctypes.CDLL, tmp_path: Path) -> None:
    """Of Gemma 3, whose rows of an image attend to each other."""
    torch.set_num_threads(3)
    subject = subject_of("gemma3", tmp_path, library)
    for _ in range(5):
        subject.check(subject.engine())


def replaced(parts: list[Part], index: int, data: bytes) -> list[Part]:
    """The image at ``index`` is of the same size, and of another file."""
    return [*parts[:index], (data, *parts[index][1:]), *parts[index + 1 :]]
