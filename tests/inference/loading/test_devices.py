"""Which KV format a spec means, and which are refused before anything is fetched."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
import torch

from inference.loading import loader
from inference.loading.devices import planned_kv_format
from inference.loading.loader import open_model
from inference.models.cache.kv_format import KVFormat
from inference.models.native import build
from inference.protocol.load import KVDtype, LoadSpec
from inference.protocol.load_errors import BadSourceError
from tests.cases import each_case

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")


def spec(kv_dtype: KVDtype = "auto", **fields: str) -> LoadSpec:
    return LoadSpec(job_id="1", model="m", source="path:/nowhere", kv_dtype=kv_dtype, **fields)  # type: ignore[arg-type]


def test_the_words_of_a_spec_are_the_formats_and_auto() -> None:
    assert set(get_args(KVDtype)) == {"auto", *get_args(KVFormat)}


@each_case(
    ("features", "chosen"), [(b"flags : avx2 avx512_vnni", "int8"), (b"flags : avx2", "bf16")]
)
def test_automatic_is_bytes_where_the_cpu_multiplies_them(
    monkeypatch: pytest.MonkeyPatch, features: bytes, chosen: str
) -> None:
    monkeypatch.setattr(build, "_cpu", lambda: features)
    assert planned_kv_format(spec(), CPU, is_native=True) == chosen


def test_automatic_on_torch_is_what_it_computes_in() -> None:
    assert planned_kv_format(spec(), CPU, is_native=False) == "fp32"
    assert planned_kv_format(spec(dtype="float16"), CUDA, is_native=False) == "fp16"


@each_case("kv_dtype", ["fp32", "bf16", "int8"])
def test_what_the_native_decoder_has_is_had(kv_dtype: KVDtype) -> None:
    assert planned_kv_format(spec(kv_dtype), CPU, is_native=True) == kv_dtype


@each_case("kv_dtype", ["fp8", "fp16"])
def test_what_it_has_not_is_refused_by_name(kv_dtype: KVDtype) -> None:
    words = f"kv_dtype {kv_dtype} is not built for the native decoder .* fp32, bf16, int8"
    with pytest.raises(BadSourceError, match=words):
        planned_kv_format(spec(kv_dtype), CPU, is_native=True)


@each_case("capability", [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (12, 0)])
@each_case("kv_dtype", get_args(KVFormat))
def test_fp8_is_for_cards_that_convert_it(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], kv_dtype: KVFormat
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    if kv_dtype != "fp8" or capability >= (8, 9):
        assert planned_kv_format(spec(kv_dtype), CUDA, is_native=False) == kv_dtype
        return
    words = (
        r"kv_dtype fp8 needs a card of compute capability 8\.9 or more, and this one has "
        rf"{capability[0]}\.{capability[1]}; set it to int8"
    )
    with pytest.raises(BadSourceError, match=words):
        planned_kv_format(spec(kv_dtype), CUDA, is_native=False)


def test_it_is_refused_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if build.find_compiler() is None:
        pytest.skip("no C++ compiler")
    monkeypatch.setattr(loader, "fetch_files", None)  # a fetch would fail
    wanted = LoadSpec(job_id="1", model="m", source="pypi:m", devices=["cpu"], kv_dtype="fp8")
    with pytest.raises(BadSourceError, match="kv_dtype fp8"):
        open_model(wanted, tmp_path, lambda _: None)
