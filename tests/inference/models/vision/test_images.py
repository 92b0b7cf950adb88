"""Models with images, on torch's operators and on the native decoder: token for token what
transformers answers, in float32, whatever happens to a sequence between its tokens."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.models.backend import AnyModel
from inference.protocol.engine import EngineStats
from tests.inference.engine.speculation.scripted_speculator import ScriptedSpeculator
from tests.inference.models.families import parity, tiny_hybrid
from tests.inference.models.families.tiny_hybrid import BLOCK_TOKENS
from tests.inference.models.vision.image_models import IMAGE_MODELS
from tests.inference.models.vision.tiny_images import Part, submit
from tests.slow_cases import slow_but

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_OUTPUTS = 10


KINDS = ("gemma3", "idefics3", "llava", "qwen3_5_moe", "qwen3_vl")
"""Rows that see each other, tiles, rows of tokens, a hybrid, and images that layers are added."""


class Subject:
    def __init__(self, name: str, directory: Path, library: ctypes.CDLL | None) -> None:
        """``library``: of the native decoder; ``None``: on torch's operators."""
        self.tiny, cache_dir = IMAGE_MODELS[name], directory / "cache"
        self.tiny.save(directory)
        self.model: AnyModel = (
            tiny_hybrid.on_torch(directory, cache_dir)
            if library is None
            else tiny_hybrid.natively(library, directory, cache_dir)
        )
        parts = self.tiny.parts()
        self.prompts = {which: self.tiny.prompt(*own) for which, own in parts.items()}
        self.answers = {
            which: self.tiny.greedy(self.prompts[which], NUM_OUTPUTS) for which in parts
        }

    def check(self, *chosen: str, **limits: Any) -> EngineStats:
        """Checks the answers to ``chosen`` prompts, or to all."""
        engine = self.tiny.engine(self.model, **limits)
        for which in chosen or self.prompts:
            submit(engine, which, self.prompts[which], NUM_OUTPUTS)
        found, _ = tiny_hybrid.run(engine)
        assert found == {which: self.answers[which] for which in chosen or self.prompts}
        return engine.stats()


@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("name", slow_but(IMAGE_MODELS, *KINDS))
def test_batch_mates_in_chunks_preemption_drafts_and_prefixes(
    name: str, is_native: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    library = request.getfixturevalue("library") if is_native else None
    subject = Subject(name, tmp_path, library)
    assert subject.model.tower is not None
    subject.check(prefill_tokens_per_step=7)
    if not is_native:
        chosen = "several", "one"
        sizes = (len(subject.prompts[which].token_ids) + NUM_OUTPUTS for which in chosen)
        num_blocks = sum(-(-size // BLOCK_TOKENS) for size in sizes) - 2
        assert subject.check(*chosen, num_kv_blocks=num_blocks).num_preemptions > 0
    speculator = ScriptedSpeculator(subject.answers, wrong_every=3)
    assert subject.check(speculator=speculator).num_accepted_drafts > 0
    check_prefix_hits(subject)


def check_prefix_hits(subject: Subject) -> None:
    """They are of the same image."""
    tiny, prompt, answer = subject.tiny, subject.prompts["several"], subject.answers["several"]
    other = tiny.prompt(*replaced(tiny.parts()["several"], 3, b"4"))
    wanted = tiny.greedy(other, NUM_OUTPUTS)
    assert other.token_ids == prompt.token_ids and wanted != answer
    engine, hits = tiny.engine(subject.model, prefill_tokens_per_step=7), []
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


def test_an_image_that_cannot_be_read_fails_its_own_sequence(tmp_path: Path) -> None:
    subject = Subject("qwen3_vl", tmp_path, None)
    engine = subject.tiny.engine(subject.model, prefill_tokens_per_step=40)
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
    subject = Subject("gemma3", tmp_path, library)
    for _ in range(5):
        subject.check()


def replaced(parts: list[Part], index: int, data: bytes) -> list[Part]:
    """The image at ``index`` is of the same size, and of another file."""
    return [*parts[:index], (data, *parts[index][1:]), *parts[index + 1 :]]
