"""A load with each KV format: its report, its memory, and that it answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.engine.load import built_model
from inference.engine.load.load_engine import load_engine
from inference.models.cache.kv_format import ELEMENT_BYTES
from inference.models.errors import UnsupportedKVError
from inference.protocol.load import KVDtype, LoadSpec
from inference.protocol.load_errors import BadSourceError
from tests.cases import each_case

KV_MEMORY_BYTES = 4 * 1024**2
HEAD_DIM = 16


def spec(directory: Path, kv_dtype: KVDtype) -> LoadSpec:
    return LoadSpec(
        job_id="1",
        model="tiny",
        source=f"path:{directory}",
        devices=["cpu"],
        kv_dtype=kv_dtype,
        kv_memory_bytes=KV_MEMORY_BYTES,
        max_concurrent_sequences=2,
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
