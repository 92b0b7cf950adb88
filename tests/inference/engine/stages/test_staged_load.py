"""A load of several stages answers what a load of one does, whatever is asked and cancelled, and
reports where each of them is."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from gguf.constants import GGMLQuantizationType as Type
from safetensors.torch import load_file

from inference.engine.engine import Engine
from inference.engine.load.load_engine import LoadedEngine
from inference.loading.loader import OpenedModel, open_model
from inference.protocol.engine import (
    CancelSequence,
    EngineStats,
    SequenceCancelled,
    SequenceStep,
    SubmitSequence,
)
from inference.protocol.images import SequenceImage, TokenRun, image_grid, num_image_tokens
from inference.protocol.load import AdapterSpec, spec_digest
from inference.protocol.load_errors import BadSourceError, PartFailedError
from inference.protocol.sampling import SamplingParams
from tests.cases import each_case
from tests.inference.adapter_files import write_adapter
from tests.inference.engine.asking import Answers, run, submit, tokens_of
from tests.inference.engine.stages.stages import PROMPT, answers, load, spec_of
from tests.inference.engine.sampling.test_grammars import PEOPLE, json_grammar
from tests.inference.loading.conftest import SIZES, save_directory, save_gguf
from tests.inference.loading.test_image_processor import encoded, noise_image
from tests.inference.models.families import tiny_hybrid
from tests.inference.models.vision.tiny_gemma3 import GEMMA3
from tests.inference.models.vision.tiny_images import IMAGE_TOKEN
from tests.inference.models.vision.tiny_qwen import QWEN3_VL

TEXT = [(7 * n) % 90 + 1 for n in range(40)]


@pytest.mark.parametrize("changes", [{"quantization": "q8"}, {"dtype": "bfloat16"}], ids=str)
def test_stages_answer_as_one(
    tiny_model_dir: Path, data_dir: Path, changes: dict[str, str]
) -> None:
    """Natively, quantised while loading, and on torch's operators; a hybrid, below, is neither."""
    alone = load(spec_of(tiny_model_dir, **changes), data_dir)
    staged = load(spec_of(tiny_model_dir, 1, 3, **changes), data_dir)
    assert answers(staged) == answers(alone)
    one, report = alone.report, staged.report
    assert [stage.layers for stage in report.stages] == [(0, 1), (1, 3)]
    assert all(stage.estimated_bytes > 0 for stage in report.stages)
    assert sum(stage.kv_bytes for stage in report.stages) == report.kv_bytes == one.kv_bytes
    assert (report.num_kv_blocks, report.context_tokens) == (one.num_kv_blocks, one.context_tokens)
    assert (report.weight_bytes, report.num_parameters) == (one.weight_bytes, one.num_parameters)
    (memory,) = report.stage_memory
    assert (memory.device, report.device) == ("cpu", "cpu")
    assert memory.actual_bytes == report.actual_bytes
    assert report.compiled.startswith("2 stages: layers 0 on cpu: ")
    assert "layers 1 to 2 on cpu: " in report.compiled
    assert bool(report.quality) == ("quantization" in changes)


def test_a_gguf_in_two(tmp_path: Path, data_dir: Path) -> None:
    """Packed weights, in blocks of several formats, of which each process reads its layers'."""
    wide = {"hidden_size": 256, "intermediate_size": 256}
    weights = load_file(save_directory(tmp_path, "llama", **wide) / "model.safetensors")
    formats = {"q_proj": Type.Q4_K, "v_proj": Type.Q6_K, "up_proj": Type.Q8_0}
    types = {name: format for name in weights for key, format in formats.items() if key in name}
    file = save_gguf(tmp_path / "model.gguf", weights, types=types, sizes=SIZES | wide)
    prompt = [1 + token % 60 for token in PROMPT]
    alone = answers(load(spec_of(file), data_dir), prompt)
    staged = load(spec_of(file, 1, 2), data_dir)
    assert answers(staged, prompt) == alone
    assert staged.report.quantization.count("Q4_K") == 2, "each stage has some"
    assert [stage.layers for stage in staged.report.stages] == [(0, 1), (1, 2)]


def test_a_hybrid_of_three_stages(tmp_path: Path, data_dir: Path) -> None:
    """The first two keep states and no keys, the third has both."""
    directory = tiny_hybrid.save(tiny_hybrid.qwen3_next(), tmp_path / "hybrid")
    alone = answers(load(spec_of(directory), data_dir))
    staged = load(spec_of(directory, 1, 3, 4), data_dir)
    assert answers(staged) == alone
    assert all(stage.kv_bytes > 0 for stage in staged.report.stages)


def test_it_sleeps_and_wakes(tiny_model_dir: Path, data_dir: Path) -> None:
    staged = load(spec_of(tiny_model_dir, 2, 3), data_dir)
    before = answers(staged)
    assert staged.sleeper is not None
    sleeper = staged.sleeper
    report = staged.report
    del staged
    sleeper.fall_asleep()
    assert answers(LoadedEngine(sleeper.wake(), report)) == before


def test_layers_that_are_not_the_models_are_refused(tiny_model_dir: Path, data_dir: Path) -> None:
    with pytest.raises(BadSourceError, match=r"\[0, 1\), \[1, 2\) are not the model's 3 layers"):
        load(spec_of(tiny_model_dir, 1, 2), data_dir)


@each_case(
    "changes",
    [
        {"tensor_parallel": 2},
        {"speculation": "mtp"},
        {"speculation": "draft_model", "draft_model": "path:x"},
        {"prefix_disk_bytes": 10**9},
    ],
    ids=str,
)
def test_what_is_not_built_for_stages_is_refused_by_name(
    tiny_model_dir: Path, data_dir: Path, changes: dict[str, object]
) -> None:
    with pytest.raises(BadSourceError, match=next(iter(changes))):
        load(spec_of(tiny_model_dir, 1, 3, **changes), data_dir)


def test_stages_of_one_device_share_its_memory(
    tiny_model_dir: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them would fit by itself."""
    spec = spec_of(tiny_model_dir, 1, 3, kv_memory_bytes=None)
    opened = [
        open_model(spec, data_dir / "models", lambda _: None, stage=stage) for stage in (0, 1)
    ]
    needs = [one.need.required_bytes for one in opened if isinstance(one, OpenedModel)]
    free_bytes = max(needs) + min(needs) // 2
    monkeypatch.setattr("inference.loading.loader.free_memory_bytes", lambda device: free_bytes)
    with pytest.raises(PartFailedError, match="on cpu"):
        load(spec, data_dir)


def test_a_plan_changes_no_digest(tiny_model_dir: Path) -> None:
    """Where layers go does not change the model."""
    assert spec_digest(spec_of(tiny_model_dir, 1, 3)) == spec_digest(spec_of(tiny_model_dir))


def test_an_adapter_over_two_stages(tiny_model_dir: Path, data_dir: Path, tmp_path: Path) -> None:
    base = load_file(tiny_model_dir / "model.safetensors")
    write_adapter(tmp_path / "adapter", base, seed=3)
    adapter = AdapterSpec(name="a", source=f"path:{tmp_path / 'adapter'}")
    found = []
    for ends, asked in (((), adapter), ((1, 3), adapter), ((), None)):
        engine = load(spec_of(tiny_model_dir, *ends), data_dir).engine
        assert isinstance(engine, Engine)
        submit(engine, "a", PROMPT, 24, adapter=asked)
        found.append(tokens_of(engine))
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("family", "ends"), [(QWEN3_VL, (1, 2, 3)), (GEMMA3, (2, 7))], ids=["qwen3-vl", "gemma3"]
)
def test_images(tmp_path: Path, data_dir: Path, family: Any, ends: tuple[int, ...]) -> None:
    """The first family adds rows of its images to the output of its first two layers, each on
    another stage; tokens of the second one's see the later ones of an image, in windows."""
    pillow = pytest.importorskip("PIL.Image")
    directory = family.save(tmp_path / "model")
    found = []
    for bounds in ((), ends):
        loaded = load(spec_of(directory, *bounds), data_dir)
        takes, engine = loaded.report.vision, loaded.engine
        assert takes is not None and isinstance(engine, Engine)
        token_ids, images = TEXT[:5], []
        for size_px in ((23, 14), (30, 22)):
            data, grid = encoded(noise_image(pillow, size_px), "PNG"), image_grid(*size_px, takes)
            run = TokenRun(len(token_ids), num_image_tokens(grid, takes.merge))
            digest = hashlib.sha256(data).hexdigest()
            images.append(SequenceImage(digest=digest, data=data, runs=[run], grid=grid))
            token_ids = [*token_ids, *[IMAGE_TOKEN] * run.num_tokens, *TEXT[5:25]]
        submit(engine, "seen", token_ids, 8, images=images)
        submit(engine, "blind", TEXT, 8)
        submit(engine, "again", token_ids, 8, images=images, same_prompt_as="seen")
        found.append(tokens_of(engine))
    assert found[0] == found[1]
    assert found[0]["seen"] == found[0]["again"] and len(found[0]["seen"]) == 8


ASKED = PROMPT[:70]
GREEDY = SamplingParams(max_tokens=24, temperature=0.0)
LONG = SamplingParams(max_tokens=100, temperature=0.0)
"""Two of these do not fit together: one is preempted, however the prompts fell into steps."""
COMMANDS = [
    SubmitSequence(
        sequence_id="scored",
        token_ids=ASKED,
        params=SamplingParams(max_tokens=8, temperature=0.0, top_logprobs=3, prompt_logprobs=2),
    ),
    SubmitSequence(
        sequence_id="drawn",
        token_ids=ASKED[:50],
        params=SamplingParams(
            max_tokens=24, seed=5, top_p=0.9, repetition_penalty=1.2, logit_bias={3: 2.0}
        ),
    ),
    SubmitSequence(
        sequence_id="grammar",
        token_ids=ASKED[:33],
        params=SamplingParams(max_tokens=90, seed=6, grammar=json_grammar(PEOPLE)),
    ),
    SubmitSequence(
        sequence_id="repeated", token_ids=ASKED[:20] * 4, params=GREEDY, prediction=ASKED[:12]
    ),
    SubmitSequence(sequence_id="choice", token_ids=ASKED, params=GREEDY),
    SubmitSequence(
        sequence_id="other choice", token_ids=ASKED, params=GREEDY, same_prompt_as="choice"
    ),
    SubmitSequence(sequence_id="long", token_ids=ASKED[30:], params=LONG),
    SubmitSequence(sequence_id="other long", token_ids=ASKED[:29:-1], params=LONG),
]


def engine_of(source: Path, data_dir: Path, *ends: int) -> Engine:
    """Makes an engine with blocks for one context and a little more, so that sequences make room
    for others."""
    spec = spec_of(source, *ends, speculation="prompt_lookup", kv_memory_bytes=130_000)
    loaded = load(spec, data_dir)
    assert isinstance(loaded.engine, Engine) and "native" in loaded.report.compiled
    return loaded.engine


def all_answers(engine: Engine) -> tuple[Answers, EngineStats]:
    """Returns the answers of all of ``COMMANDS`` at once."""
    for command in COMMANDS:
        engine.submit(command)
    found = run(engine)
    assert found.failed == {}
    return found, engine.stats()


def test_stages_answer_as_one_whatever_is_asked(tiny_model_dir: Path, data_dir: Path) -> None:
    expected, _ = all_answers(engine_of(tiny_model_dir, data_dir))
    found, stats = all_answers(engine_of(tiny_model_dir, data_dir, 1, 2, 3))
    for of in ("tokens", "logprobs", "scored"):
        assert getattr(found, of) == getattr(expected, of)
    assert len(found.logprobs["scored"]) == 8 and len(found.scored["scored"]) == len(ASKED) - 1
    assert found.tokens["choice"] == found.tokens["other choice"]
    assert stats.num_preemptions > 0
    assert stats.num_drafted_tokens > 0


def cancel_in_every_phase(engine: Engine) -> None:
    """Sequences are cancelled while they wait, in their prompts, and in their answers."""
    for num_steps in (0, 1, 2, 12):
        for command in COMMANDS:
            engine.submit(command)
        for _ in range(num_steps):
            engine.step()
        for command in COMMANDS:
            engine.cancel(CancelSequence(sequence_id=command.sequence_id))
        outputs = engine.step()  # which checks that nothing is held
        kinds = SequenceCancelled | SequenceStep
        assert all(isinstance(output, kinds) for output in outputs.outputs)
        assert not engine.has_work
        assert (outputs.stats.in_flight, outputs.stats.queue_depth) == (0, 0)


def test_a_cancel_frees_all_that_a_sequence_has(tiny_model_dir: Path, data_dir: Path) -> None:
    cancel_in_every_phase(engine_of(tiny_model_dir, data_dir, 1, 3))
