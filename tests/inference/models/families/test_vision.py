"""Models that are given pictures, through the engine: token for token what transformers answers, in
float32, whatever happens to a sequence between its tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from inference.engine.images.image_rows import ImageRows
from inference.models.backend import AnyModel
from inference.models.vision.tower import PictureRows
from inference.protocol.engine import SequenceFailed, SequenceStep
from inference.protocol.images import SequenceImage
from tests.inference.engine.speculation.scripted_speculator import ScriptedSpeculator
from tests.inference.models.families import parity, tiny_hybrid, tiny_vision
from tests.inference.models.families.rows import GGUFRow, Row
from tests.inference.models.families.test_hybrid import prompt_of
from tests.inference.models.families.tiny_vision import Prompt, engine_of, submit

REFERENCES: dict[str, Callable[[], PreTrainedModel]] = {
    "qwen3_vl": tiny_vision.qwen3_vl,
    "qwen3_vl_moe": tiny_vision.qwen3_vl_moe,
    "qwen3_5": tiny_vision.qwen3_5,
    "qwen3_5_moe": tiny_vision.qwen3_5_moe,
}
NUM_TOKENS = 10
LANDSCAPE, PORTRAIT, SMALL = (b"1", 3, 5), (b"2", 6, 2), (b"3", 1, 1)
TEXT = [token % 100 for token in prompt_of(30)]
PROMPTS = {
    "text": Prompt(TEXT),
    "one": Prompt(TEXT[:5], LANDSCAPE, TEXT[5:9]),
    "several": Prompt(TEXT[:3], LANDSCAPE, TEXT[3:5], PORTRAIT, SMALL, TEXT[5:20]),
    "last": Prompt(TEXT[:11], PORTRAIT),
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Products this small take longer to share out than to compute, above all on a busy machine."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module", params=sorted(REFERENCES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def directory(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_vision.save(REFERENCES[name](), tmp_path_factory.mktemp(name))


@pytest.fixture(scope="module")
def model(directory: Path) -> AnyModel:
    return tiny_vision.on_torch(directory, directory / "cache")


@pytest.fixture(scope="module")
def answers(name: str) -> dict[str, list[int]]:
    """transformers', to each of ``PROMPTS``."""
    reference = REFERENCES[name]()
    return {
        which: tiny_vision.greedy(reference, prompt, NUM_TOKENS)
        for which, prompt in PROMPTS.items()
    }


def test_batch_mates(model: AnyModel, answers: dict[str, list[int]]) -> None:
    engine = engine_of(model)
    for which, prompt in PROMPTS.items():
        submit(engine, which, prompt, NUM_TOKENS)
    found, _ = tiny_hybrid.run(engine)
    assert found == answers


@pytest.mark.parametrize("num_tokens", [7, 16])
def test_chunks_end_inside_images(
    model: AnyModel, answers: dict[str, list[int]], num_tokens: int
) -> None:
    engine = engine_of(model, prefill_tokens_per_step=num_tokens)
    for which, prompt in PROMPTS.items():
        submit(engine, which, prompt, NUM_TOKENS)
    found, _ = tiny_hybrid.run(engine)
    assert found == answers


@pytest.mark.parametrize("order", [("several", "one"), ("one", "several")], ids=str)
def test_preemption(model: AnyModel, answers: dict[str, list[int]], order: tuple[str, ...]) -> None:
    """Recomputed with outputs behind the images."""
    engine = engine_of(model, num_kv_blocks=11)
    for which in order:
        submit(engine, which, PROMPTS[which], NUM_TOKENS)
    found, _ = tiny_hybrid.run(engine)
    assert engine.stats().num_preemptions > 0
    assert found == {which: answers[which] for which in found}


def test_drafts_behind_images(model: AnyModel, answers: dict[str, list[int]]) -> None:
    """Their rows are rotated by places that lag behind their positions, as the others' are."""
    speculator = ScriptedSpeculator(answers, wrong_every=3)
    engine = engine_of(model, speculator=speculator)
    for which, prompt in PROMPTS.items():
        submit(engine, which, prompt, NUM_TOKENS)
    found, _ = tiny_hybrid.run(engine)
    assert found == answers
    assert engine.stats().num_accepted_drafts > 0


def test_no_step_waits_for_more_than_one_image(
    model: AnyModel, answers: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chat beside images, each of which takes the tower as long as many of its steps."""
    runs: list[int] = []
    run = ImageRows.of

    def counted(rows: ImageRows, image: SequenceImage) -> PictureRows:
        before = rows.num_runs
        found = run(rows, image)
        runs[-1] += rows.num_runs - before
        return found

    monkeypatch.setattr(ImageRows, "of", counted)
    engine = engine_of(model)
    for which, prompt in PROMPTS.items():
        submit(engine, which, prompt, NUM_TOKENS)
    found: dict[str, list[int]] = {}
    while engine.has_work:
        runs.append(0)
        for output in engine.step().outputs:
            assert isinstance(output, SequenceStep)
            found.setdefault(output.sequence_id, []).extend(output.token_ids)
    assert found == answers
    assert max(runs) == 1 and sum(runs) == 3, "LANDSCAPE and PORTRAIT are in two prompts"


def test_prefix_hits_are_of_the_same_image(
    name: str, model: AnyModel, answers: dict[str, list[int]]
) -> None:
    """Its tokens are those of any other of its size."""
    other = Prompt(TEXT[:5], (b"4", 3, 5), TEXT[5:9])
    wanted = tiny_vision.greedy(REFERENCES[name](), other, NUM_TOKENS)
    assert other.token_ids == PROMPTS["one"].token_ids and wanted != answers["one"]
    engine = engine_of(model)
    cached = []
    for prompt in (PROMPTS["one"], PROMPTS["one"], other, other):
        submit(engine, "it", prompt, NUM_TOKENS)
        found, known = tiny_hybrid.run(engine)
        assert found == {"it": wanted if prompt is other else answers["one"]}
        cached.append(known["it"])
    assert cached[0] == cached[2] == 0, "the image begins in the first block"
    assert cached[1] == cached[3] >= 16


def test_an_image_that_cannot_be_read_fails_its_own_sequence(
    model: AnyModel, answers: dict[str, list[int]]
) -> None:
    engine = engine_of(model, prefill_tokens_per_step=40)
    submit(engine, "one", PROMPTS["one"], NUM_TOKENS)
    submit(engine, "broken", Prompt(TEXT[:5], (b"no number", 3, 5), TEXT[5:9]), NUM_TOKENS)
    submit(engine, "last", PROMPTS["last"], NUM_TOKENS)
    found: dict[str, list[int]] = {}
    failed: list[tuple[str, str]] = []
    while engine.has_work:
        for output in engine.step().outputs:
            if isinstance(output, SequenceStep):
                found.setdefault(output.sequence_id, []).extend(output.token_ids)
            else:
                assert isinstance(output, SequenceFailed)
                failed.append((output.sequence_id, output.code))
    assert failed == [("broken", "invalid_image")]
    assert found == {which: answers[which] for which in ("one", "last")}


def test_gguf_of_the_text_model(tmp_path: Path) -> None:
    """Its layers are qwen3's; llama.cpp keeps the tower in a file of its own."""
    row = Row(model_type="qwen3", gguf=GGUFRow(architecture="qwen3vl"))
    reference = parity.build_reference(row)
    path = parity.save_gguf(row, reference, tmp_path / "model.gguf")
    parity.check_source(reference, path, tmp_path)
