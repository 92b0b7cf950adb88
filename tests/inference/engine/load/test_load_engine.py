"""A loaded engine has the queue and the KV format that its spec names, and its report says what its
host lacks."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from inference.engine.engine import Engine
from inference.engine.load import built_model
from inference.engine.load.load_engine import load_engine, load_warnings
from inference.models.cache.kv_format import ELEMENT_BYTES
from inference.models.errors import UnsupportedKVError
from inference.protocol.engine import SamplingParams, SequenceFailed, SubmitSequence
from inference.protocol.load import KVDtype, LoadSpec
from inference.protocol.load_errors import BadSourceError
from inference.protocol.load_progress import LoadProgress, LoadStage
from tests.cases import each_case
from tests.inference.engine.load.loads import cpu_spec

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
