"""A loaded engine has the queue, the KV format and the vision tower that its spec and files name;
its report says what its host lacks, and that it does not fit where it gets no memory."""

from __future__ import annotations

import errno
import gc
import hashlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal
from unittest.mock import patch

import pytest
import torch

from inference.engine.engine import Engine
from inference.engine.errors import DoesNotFitError
from inference.engine.load import built_model
from inference.engine.load.build import warm_up
from inference.engine.load.load_engine import load_engine, load_warnings
from inference.engine.load.trial import run_largest_image
from inference.engine.serving import process
from inference.loading import image_processor
from inference.models.config import ModelConfig
from inference.models.errors import PositionError, UnsupportedKVError
from inference.models.layers import rope, step
from inference.models.native import model as native_model
from inference.models.step_input import StepInput, block_table_of
from inference.models.vision.tower import Tower
from inference.models.vision_config import KEPT_ROWS_BYTES
from inference.protocol.engine import SequenceFailed, StepOutputs
from inference.protocol.images import (
    SequenceImage,
    TokenRun,
    VisionInput,
    image_grid,
    num_image_tokens,
)
from inference.protocol.load import KVDtype, LoadSpec
from inference.protocol.load_errors import BadSourceError
from inference.protocol.load_progress import LoadProgress, LoadStage
from tests.cases import each_case
from tests.inference.engine.asking import answer_of, cpu_spec, run, submit
from tests.inference.engine.conftest import CONTEXT_TOKENS, Pair
from tests.inference.loading.test_image_processor import encoded, noise_image
from tests.inference.models.families import tiny_hybrid
from tests.inference.models.vision.tiny_images import IMAGE_TOKEN
from tests.inference.models.vision.tiny_images import submit as submit_prompt
from tests.inference.models.vision.tiny_qwen import MERGE, PATCH_PX, PROCESSOR, QWEN3_VL
from tests.inference.reports import engine_stats

KV_MEMORY_BYTES = 4 * 1024**2
HEAD_DIM = 16


@each_case(
    ("queue", "expected"),
    [
        ({"max_queue_depth": 2, "max_queue_share_percent": 100}, {"3": "queue_full"}),
        ({"max_queue_depth": 4, "max_queue_share_percent": 50}, {"3": "rate_limit_exceeded"}),
        (
            {"max_queue_depth": 4, "max_queue_share_percent": 100, "max_queue_wait_s": 0.0},
            dict.fromkeys("123", "queue_timeout"),
        ),
        ({"max_queue_depth": 4, "max_queue_share_percent": 100}, {}),
    ],
)
def test_depth_share_and_wait(
    tiny_model_dir: Path, data_dir: Path, queue: dict[str, Any], expected: dict[str, str]
) -> None:
    spec = cpu_spec(
        tiny_model_dir, kv_memory_bytes=KV_MEMORY_BYTES, max_concurrent_sequences=1, **queue
    )
    reported: list[LoadProgress] = []
    engine = load_engine(spec, data_dir, reported.append).engine
    assert isinstance(engine, Engine)
    for number in range(4):
        submit(engine, str(number), [1], 1, account="a")
    assert run(engine).failed == expected
    steps = [one for one in reported if one.stage is LoadStage.WARMUP]
    assert {one.unit for one in steps} == {"steps"}
    (total,) = {one.total for one in steps}
    assert [one.done for one in steps] == list(range(total)) and total > 3


def test_a_card_on_a_host_without_a_c_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    (warning,) = load_warnings(torch.device("cuda:0"))
    assert "C compiler" in warning
    assert load_warnings(torch.device("cpu")) == [], "nothing there is built with Triton"


@each_case("kv_dtype", ["fp32", "bf16", "int8"])
def test_a_load_reports_what_it_stores(
    tiny_model_dir: Path, data_dir: Path, kv_dtype: KVDtype
) -> None:
    spec = cpu_spec(tiny_model_dir, kv_dtype=kv_dtype, kv_memory_bytes=KV_MEMORY_BYTES)
    report = load_engine(spec, data_dir, lambda _: None).report
    if not report.compiled.startswith("native"):
        pytest.skip(report.compiled)
    assert report.kv_dtype == kv_dtype
    vector_bytes = {"fp32": 4 * HEAD_DIM, "bf16": 2 * HEAD_DIM, "int8": HEAD_DIM + 4}[kv_dtype]
    layers, kv_heads, block_tokens = 3, 2, 32
    block_bytes = 2 * layers * kv_heads * block_tokens * vector_bytes
    assert report.kv_bytes == report.num_kv_blocks * block_bytes


def test_a_path_without_the_feature_may_not_have_it(
    tiny_model_dir: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UnsupportedKVError("kv_dtype int8 is not built there; set it to auto")

    monkeypatch.setattr(built_model, "build_fastest_model", refuse)
    with pytest.raises(BadSourceError, match="kv_dtype int8 is not built there"):
        load_engine(cpu_spec(tiny_model_dir, kv_dtype="int8"), data_dir, lambda _: None)


@each_case(
    ("error", "code"),
    [
        (MemoryError("no memory for a native decoder of 2 threads"), "does_not_fit"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "does_not_fit"),
        (OSError(errno.EIO, "Input/output error"), "engine_crashed"),
    ],
    ids=repr,
)
def test_a_load_without_memory_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
) -> None:
    sent: list[Any] = []

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(process, "load_engine", fail)
    monkeypatch.setattr(process, "configure_threads", lambda: None)
    spec = LoadSpec(job_id="1", model="tiny", source="path:none")
    messenger: Any = SimpleNamespace(send=sent.append)
    assert process._load(spec, messenger) is None
    assert sent[-1].failure.code == code


def test_first_steps_without_memory_report_it() -> None:
    asked: list[Any] = []

    def step() -> StepOutputs:
        name = asked[-1].sequence_id
        failed = SequenceFailed(sequence_id=name, code="out_of_memory", message="no memory")
        return StepOutputs(outputs=[failed], stats=engine_stats())

    engine: Any = SimpleNamespace(has_work=True, submit=asked.append, step=step)
    with pytest.raises(DoesNotFitError):
        warm_up(engine, 100, lambda _: None)


@each_case("dtype", ["bfloat16", "float32"], ids=["torch", "native"])
def test_a_clamped_context_loads_and_is_used_to_its_end(
    tiny_model_dir: Path, data_dir: Path, dtype: Literal["bfloat16", "float32"]
) -> None:
    for context_tokens in (50, 128):
        spec = cpu_spec(
            tiny_model_dir,
            dtype=dtype,
            max_context_tokens=context_tokens,
            kv_memory_bytes=KV_MEMORY_BYTES,
        )
        loaded = load_engine(spec, data_dir, lambda _: None)
        assert loaded.report.context_tokens == context_tokens
        assert 40 + len(answer_of(loaded, [*range(1, 41)], context_tokens)) == context_tokens


@each_case("dtype", ["bfloat16", "float32"], ids=["torch", "native"])
def test_a_declared_context_is_a_claim_that_memory_bounds(
    tiny_model_dir: Path,
    data_dir: Path,
    tmp_path: Path,
    dtype: Literal["bfloat16", "float32"],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Angles of sixteen million positions would take gigabytes."""
    path = shutil.copytree(tiny_model_dir, tmp_path / "claiming") / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_position_embeddings": 2**24}))
    lengths: list[int] = []
    table_of = rope.rope_table

    def measured(config: ModelConfig, num_positions: int, *others: Any) -> rope.RopeTable:
        lengths.append(num_positions)
        return table_of(config, num_positions, *others)

    for user in (native_model, step):
        monkeypatch.setattr(user, "rope_table", measured)
    spec = cpu_spec(path.parent, dtype=dtype, kv_memory_bytes=KV_MEMORY_BYTES)
    report = load_engine(spec, data_dir, lambda _: None).report
    assert 1000 < report.context_tokens <= max(lengths) < 30_000
    assert "bound by KV memory, the model's own are 16,777,216" in report.context_reason


def test_a_step_beyond_the_angles_is_refused_before_it_writes(llama: Pair) -> None:
    model, size = llama.model, llama.block_tokens
    num_blocks = CONTEXT_TOKENS // size + 1
    kv = model.new_kv(num_blocks, size)
    with pytest.raises(PositionError):
        model.forward(StepInput.of_sequence([0] * size, size, start=CONTEXT_TOKENS), kv)
    row = StepInput.of_decodes([0], [CONTEXT_TOKENS], block_table_of([range(num_blocks)]), size)
    with pytest.raises(PositionError):
        model.forward(row, kv)
    tensors = [kv.keys, kv.values] if hasattr(kv, "keys") else [x.entries for x in kv.layers]
    assert not any(bool(tensor.any()) for tensor in tensors)
    whole = StepInput.of_sequence([0] * CONTEXT_TOKENS, size)
    assert bool(model.forward(whole, kv).isfinite().all()), "up to them it is computed"


VISION = VisionInput(
    pad_token_id=IMAGE_TOKEN,
    patch_px=PATCH_PX,
    merge=MERGE,
    min_pixels=PROCESSOR["size"]["shortest_edge"],
    max_pixels=PROCESSOR["size"]["longest_edge"],
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return QWEN3_VL.save(tmp_path_factory.mktemp("qwen3_vl"))


@pytest.mark.parametrize("form", ["safetensors", "gguf"])
def test_an_image_through_a_loaded_model(
    directory: Path, form: str, tmp_path: Path, native_cache_dir: Path
) -> None:
    pillow = pytest.importorskip("PIL.Image")
    source = directory if form == "safetensors" else QWEN3_VL.save_gguf(tmp_path / "gguf").parent
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "native").symlink_to(native_cache_dir)
    spec = cpu_spec(source, max_concurrent_sequences=4, kv_memory_bytes=2 * 1024**2)
    gc.collect()  # what earlier tests left is not freed while the load's memory is measured
    found = load_engine(spec, tmp_path, lambda _: None, check_when_idle=True)
    assert found.report.vision == VISION
    assert found.report.actual_bytes > KEPT_ROWS_BYTES < found.report.estimated_bytes
    assert found.report.compiled.startswith("native decoder")
    data = encoded(noise_image(pillow, (23, 14)), "PNG")
    grid = image_grid(23, 14, VISION)
    pads = [IMAGE_TOKEN] * num_image_tokens(grid, VISION.merge)
    image = SequenceImage(
        digest=hashlib.sha256(data).hexdigest(),
        data=data,
        runs=[TokenRun(3, len(pads))],
        grid=grid,
    )
    prompt = QWEN3_VL.prompt([5, 6, 7, *pads, 8])
    prompt.images.append(image)
    config = tiny_hybrid.opened(source, tmp_path).config
    processor, _ = image_processor.open_image_processor(source, config)
    assert processor is not None and isinstance(found.engine, Engine)
    patches = torch.from_numpy(processor.patches(data, grid))
    wanted = QWEN3_VL.greedy_of(QWEN3_VL.make(), prompt.token_ids, [patches], 6, [grid])
    submit_prompt(found.engine, "it", prompt, 6)
    answers, _ = tiny_hybrid.run(found.engine)
    assert answers == {"it": wanted}


def test_without_pillow_it_is_a_text_model(
    directory: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_processor, "find_spec", lambda name: None)
    found = load_engine(cpu_spec(directory, kv_memory_bytes=2**21), data_dir, lambda _: None)
    assert found.report.vision is None
    assert isinstance(found.engine, Engine)
    image_of_seed = QWEN3_VL.prompt([5], (b"1", 2, 2), [6])
    submit_prompt(found.engine, "it", image_of_seed, 3)
    (refused,) = found.engine.step().outputs
    assert isinstance(refused, SequenceFailed) and refused.code == "vision_unsupported"
    assert "no images: Pillow is not installed" in found.report.quantization


def test_the_trial_runs_the_largest_image(directory: Path, tmp_path: Path) -> None:
    model = tiny_hybrid.on_torch(directory, tmp_path)
    tower = model.tower
    assert tower is not None
    with patch.object(Tower, "__call__", autospec=True, side_effect=Tower.__call__) as spy:
        run_largest_image(model)
    ((_, patches, grid),) = (call.args for call in spy.call_args_list)
    assert grid == (1, 10, 10) and len(patches) == 100
