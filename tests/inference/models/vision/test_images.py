"""Models with images, on torch's operators and on the native decoder: token for token what
transformers answers, in float32, whatever happens to a sequence between its tokens. And towers of
either format make transformers' rows."""

from __future__ import annotations

import copy
import ctypes
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference.engine.load import trial
from inference.models.backend import AnyModel
from inference.models.families.registry import FAMILIES
from inference.models.vision_config import VisionConfig
from inference.models.vision_tower import Tower
from inference.protocol.engine import EngineStats
from tests.cases import each_case
from tests.inference.engine.speculation.scripted_speculator import ScriptedSpeculator
from tests.inference.models.families import parity, tiny_hybrid
from tests.inference.models.families.rows import Row
from tests.inference.models.families.tiny_hybrid import BLOCK_TOKENS
from tests.inference.models.vision import tiny_mmproj
from tests.inference.models.vision.tiny_gemma3 import OLD_NAMES
from tests.inference.models.vision.tiny_idefics3 import SIDE
from tests.inference.models.vision.tiny_images import TEXT, Part, TinyModel, submit
from tests.inference.models.vision.tiny_pixtral import NAMED
from tests.inference.models.vision.tiny_qwen import IMAGE_MODELS
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


@each_case(
    ("name", "changes"),
    [
        *((name, {}) for name in IMAGE_MODELS if name != "qwen3_vl_moe"),
        ("gemma3", {"renamed": OLD_NAMES}),
    ],
    ids=str,
)
def test_a_tower_of_either_format(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    tiny = IMAGE_MODELS[name]
    packed = tiny_hybrid.on_torch(tiny.save_gguf(tmp_path / "gguf", **changes), tmp_path)
    dense = tiny_hybrid.on_torch(tiny.save(tmp_path / "dense"), tmp_path)
    assert config_of(packed) == config_of(dense)
    rows, of_dense = (rows_of(model, tiny) for model in (packed, dense))
    # The converter rounds some numbers: it adds one to norms of Gemma 3 and of hybrids.
    if name == "gemma3":
        torch.testing.assert_close(rows, of_dense, rtol=1e-5, atol=1e-5)
    else:
        assert torch.equal(rows, of_dense)
    wanted = tiny.features()
    torch.testing.assert_close(of_dense[:, : wanted.shape[1]], wanted, rtol=1e-4, atol=1e-4)
    logits, of_dense = (tiny_hybrid.logits_of(model, TEXT[:9]) for model in (packed, dense))
    torch.testing.assert_close(logits, of_dense, rtol=1e-4, atol=1e-4)
    check_answer(tiny, packed)


NOT_OF_BOTH = {"image_mean", "image_std", "has_norm_plus_one", "has_swapped_mlp_names"}
"""What only an mmproj file holds, and how either holds its tensors."""


def config_of(model: AnyModel) -> dict[str, Any]:
    """The vision config, as float32 holds its numbers."""
    vision = model.config.vision
    fields = {name: getattr(vision, name) for name in VisionConfig.__slots__}
    kept = {name: value for name, value in fields.items() if name not in NOT_OF_BOTH}
    return kept | {name: round(value, 9) for name, value in kept.items() if type(value) is float}


def rows_of(model: AnyModel, tiny: TinyModel) -> torch.Tensor:
    found = model.tower(torch.from_numpy(tiny.patches(b"1", tiny.grid)), tiny.grid)
    return torch.cat((found.embeddings, *found.deepstack), dim=1)


def check_answer(tiny: TinyModel, model: AnyModel) -> None:
    prompt, engine = tiny.prompt(*tiny.parts()["several"]), tiny.engine(model)
    submit(engine, "it", prompt, NUM_OUTPUTS)
    assert tiny_hybrid.run(engine)[0] == {"it": tiny.greedy(prompt, NUM_OUTPUTS)}


def test_norms_add_what_a_file_declares_and_text_models_of_either_architecture(
    tmp_path: Path,
) -> None:
    shown = [family for family in FAMILIES if IMAGE_MODELS.keys() & set(family.model_types)]
    projectors = {one for family in FAMILIES for one in family.gguf_projectors}
    assert projectors == {one for family in shown for one in family.gguf_projectors}
    tiny = IMAGE_MODELS["idefics3"]
    path = tiny.save_gguf(tmp_path / "it", **{"vision.attention.layer_norm_epsilon": 0.25})
    changed = copy.deepcopy(tiny.make())
    for module in changed.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 0.25
    wanted = replace(tiny, make=lambda: changed).features()
    found = rows_of(tiny_hybrid.on_torch(path, tmp_path), tiny)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    tiny = IMAGE_MODELS["mistral3"]
    path, rows = tiny.save_gguf(tmp_path / "mistral3"), []
    for architecture in ("llama", "mistral3"):
        own = Row(architecture=architecture, interleaves=True)
        tiny_mmproj.save_text(tiny.make(), path, NAMED, own)
        rows.append(rows_of(tiny_hybrid.on_torch(path, tmp_path), tiny))
    assert torch.equal(*rows)


def test_a_checkpoint_as_qwen2_5_vl_was_published(tmp_path: Path) -> None:
    tiny = IMAGE_MODELS["qwen2_5_vl"]
    directory = tiny.save(tmp_path / "model")
    config = json.loads((directory / "config.json").read_bytes())
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    scaling = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    flat = {"rope_theta": rope["rope_theta"], "rope_scaling": scaling}
    flat |= {"eos_token_id": None, "bos_token_id": None}
    (directory / "config.json").write_text(json.dumps(text | config | flat))
    tensors = load_file(directory / "model.safetensors")
    published = {
        name.replace("model.language_model.", "model.").replace("model.visual.", "visual."): tensor
        for name, tensor in tensors.items()
    }
    assert any(name.startswith("visual.") for name in published)
    save_file(published, directory / "model.safetensors", {"format": "pt"})
    check_answer(tiny, tiny_hybrid.on_torch(directory, tmp_path))


@each_case(
    ("name", "num_blocks", "grid"),
    [("gemma3", 20, (1, 4, 4)), ("idefics3", None, (1, SIDE, SIDE)), ("smolvlm", 20, (1, 4, 4))],
)
def test_a_trial_runs_a_tile_or_a_part_of_an_image(
    name: str,
    num_blocks: int | None,
    grid: tuple[int, int, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``num_blocks``: how many rows' products the trial may compute; ``None``: as many as usual."""
    model = tiny_hybrid.on_torch(IMAGE_MODELS[name].save(tmp_path / "model"), tmp_path)
    if num_blocks is not None:
        operations = num_blocks * trial.block_weights(model.tower.config)
        monkeypatch.setattr(trial, "LARGEST_TRIAL_OPERATIONS", operations)
    runs = []
    monkeypatch.setattr(
        Tower, "__call__", lambda self, patches, grid: runs.append((len(patches), grid))
    )
    trial.run_largest_image(model)
    assert runs == [(grid[1] * grid[2], grid)]
