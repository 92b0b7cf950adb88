"""A loaded engine has the queue and the KV format that its spec names, and its report says what its
host lacks. One that gets no memory reports that the model does not fit."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import torch

from inference.engine.engine import Engine
from inference.engine.errors import DoesNotFitError
from inference.engine.load import built_model
from inference.engine.load.build import warm_up
from inference.engine.load.load_engine import load_engine, load_warnings
from inference.engine.serving import process
from inference.models.cache.kv_format import ELEMENT_BYTES
from inference.models.config import ModelConfig
from inference.models.errors import PositionError, UnsupportedKVError
from inference.models.layers import rope, step
from inference.models.native import model as native_model
from inference.models.step_input import StepInput, block_table_of
from inference.protocol.engine import SamplingParams, SequenceFailed, StepOutputs, SubmitSequence
from inference.protocol.load import KVDtype, LoadSpec
from inference.protocol.load_errors import BadSourceError
from inference.protocol.load_progress import LoadFailure, LoadProgress, LoadStage
from tests.cases import each_case
from tests.inference.engine.conftest import CONTEXT_TOKENS, Pair
from tests.inference.engine.load.loads import answer_of, cpu_spec
from tests.inference.reports import engine_stats

KV_MEMORY_BYTES = 4 * 1024**2
HEAD_DIM = 16


def loaded(directory: Path, data_dir: Path, **queue: int | float) -> Engine:
    spec = cpu_spec(directory, kv_memory_bytes=KV_MEMORY_BYTES, max_concurrent_sequences=1)
    engine = load_engine(msgspec.structs.replace(spec, **queue), data_dir, lambda _: None).engine
    assert isinstance(engine, Engine)
    return engine


def refused(engine: Engine, num_sequences: int) -> list[tuple[str, str]]:
    """Ids and codes of those that fail among so many of one account."""
    for number in range(num_sequences):
        engine.submit(
            SubmitSequence(
                sequence_id=str(number),
                token_ids=[1],
                params=SamplingParams(max_tokens=1),
                account="a",
            )
        )
    outputs = []
    while engine.has_work:
        outputs += engine.step().outputs
    return [(one.sequence_id, one.code) for one in outputs if isinstance(one, SequenceFailed)]


@each_case(
    ("queue", "expected"),
    [
        ({"max_queue_depth": 2, "max_queue_share_percent": 100}, [("3", "queue_full")]),
        ({"max_queue_depth": 4, "max_queue_share_percent": 50}, [("3", "rate_limit_exceeded")]),
        ({"max_queue_depth": 4, "max_queue_share_percent": 100, "max_queue_wait_s": 0.0}, None),
        ({"max_queue_depth": 4, "max_queue_share_percent": 100}, []),
    ],
)
def test_depth_share_and_wait(
    tiny_model_dir: Path, data_dir: Path, queue: dict[str, int | float], expected
) -> None:
    found = refused(loaded(tiny_model_dir, data_dir, **queue), 4)
    if expected is None:
        assert {code for _, code in found} == {"queue_timeout"}
    else:
        assert found == expected


def test_a_first_load_counts_its_steps(tiny_model_dir: Path, data_dir: Path) -> None:
    spec = cpu_spec(tiny_model_dir, kv_memory_bytes=KV_MEMORY_BYTES)
    reported: list[LoadProgress] = []
    load_engine(spec, data_dir, reported.append)
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


def spec(directory: Path, kv_dtype: KVDtype) -> LoadSpec:
    return cpu_spec(
        directory, kv_dtype=kv_dtype, kv_memory_bytes=KV_MEMORY_BYTES, max_concurrent_sequences=2
    )


@each_case("kv_dtype", ["fp32", "bf16", "int8"])
def test_a_load_reports_what_it_stores(
    tiny_model_dir: Path, data_dir: Path, kv_dtype: KVDtype
) -> None:
    report = load_engine(spec(tiny_model_dir, kv_dtype), data_dir, lambda _: None).report
    if not report.compiled.startswith("native"):
        pytest.skip(report.compiled)
    assert report.kv_dtype == kv_dtype
    exact = load_engine(spec(tiny_model_dir, "fp32"), data_dir, lambda _: None).report
    scale_bytes = 4 if kv_dtype == "int8" else 0
    assert kv_dtype != "auto"
    ratio = (HEAD_DIM * ELEMENT_BYTES[kv_dtype] + scale_bytes) / (HEAD_DIM * 4)
    per_block = report.kv_bytes / report.num_kv_blocks
    assert per_block == ratio * exact.kv_bytes / exact.num_kv_blocks


def test_a_path_without_the_feature_may_not_have_it(
    tiny_model_dir: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UnsupportedKVError("kv_dtype int8 is not built there; set it to auto")

    monkeypatch.setattr(built_model, "build_fastest_model", refuse)
    with pytest.raises(BadSourceError, match="kv_dtype int8 is not built there"):
        load_engine(spec(tiny_model_dir, "int8"), data_dir, lambda _: None)


STATS = engine_stats()


def no_memory_of_torch() -> None:
    torch.empty(1 << 60, dtype=torch.uint8)


def no_memory_of_the_native_decoder() -> None:
    raise MemoryError("no memory for a native decoder of 2 threads")


def no_pages() -> None:
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


def something_else() -> None:
    raise OSError(errno.EIO, "Input/output error")


@each_case(
    ("fails", "code"),
    [
        (no_memory_of_torch, "does_not_fit"),
        (no_memory_of_the_native_decoder, "does_not_fit"),
        (no_pages, "does_not_fit"),
        (something_else, "engine_crashed"),
    ],
)
def test_a_load_without_memory_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, fails: Any, code: str
) -> None:
    sent: list[Any] = []

    class Messenger:
        def send(self, message: Any) -> None:
            sent.append(message)

    monkeypatch.setattr(process, "load_engine", lambda *_, **__: fails())
    monkeypatch.setattr(process, "configure_threads", lambda: None)
    spec = LoadSpec(job_id="1", model="tiny", source="path:none")
    assert process._load(spec, Messenger()) is None  # type: ignore[arg-type]
    failure: LoadFailure = sent[-1].failure
    assert failure.code == code


def test_first_steps_without_memory_report_it() -> None:
    class Engine:
        has_work = True

        def submit(self, command: Any) -> None:
            self.sequence_id = command.sequence_id

        def step(self) -> StepOutputs:
            failed = SequenceFailed(
                sequence_id=self.sequence_id, code="out_of_memory", message="no memory"
            )
            return StepOutputs(outputs=[failed], stats=STATS)

    with pytest.raises(DoesNotFitError):
        warm_up(Engine(), 100, lambda _: None)  # type: ignore[arg-type]


@each_case("dtype", ["bfloat16", "float32"], ids=["torch", "native"])
@each_case("context_tokens", [50, 128])
def test_a_clamped_context_loads_and_is_used_to_its_end(
    tiny_model_dir: Path,
    data_dir: Path,
    dtype: Literal["bfloat16", "float32"],
    context_tokens: int,
) -> None:
    spec = cpu_spec(
        tiny_model_dir,
        dtype=dtype,
        max_context_tokens=context_tokens,
        kv_memory_bytes=4 * 1024**2,
        max_concurrent_sequences=16,
    )
    loaded = load_engine(spec, data_dir, lambda _: None)
    assert loaded.report.context_tokens == context_tokens
    prompt = list(range(1, 41))
    answer = answer_of(loaded, prompt, context_tokens)
    assert len(prompt) + len(answer) == context_tokens


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"], ids=["torch", "native"])
def test_a_declared_context_is_a_claim_that_memory_bounds(
    tiny_model_dir: Path,
    data_dir: Path,
    tmp_path: Path,
    dtype: Literal["bfloat16", "float32"],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Angles of sixteen million positions would take gigabytes."""
    shutil.copytree(tiny_model_dir, tmp_path / "claiming")
    path = tmp_path / "claiming" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_position_embeddings": 2**24}))
    lengths: list[int] = []
    table_of = rope.rope_table

    def measured(config: ModelConfig, num_positions: int, *others: Any) -> rope.RopeTable:
        lengths.append(num_positions)
        return table_of(config, num_positions, *others)

    for user in (native_model, step):
        monkeypatch.setattr(user, "rope_table", measured)
    spec = cpu_spec(path.parent, dtype=dtype, kv_memory_bytes=4 * 1024**2)
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
