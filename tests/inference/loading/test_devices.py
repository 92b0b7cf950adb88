"""Which KV format a spec means, and which are refused before anything is fetched."""

from __future__ import annotations

from contextlib import nullcontext
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


@each_case(
    ("device", "fields", "is_native", "features", "chosen"),
    [
        (CPU, {}, True, b"flags : avx2 avx512_vnni", "int8"),
        (CPU, {}, True, b"flags : avx2", "bf16"),
        (CPU, {}, False, b"", "fp32"),
        (CUDA, {"dtype": "float16"}, False, b"", "fp16"),
    ],
)
def test_automatic_is_bytes_where_the_cpu_multiplies_them_and_on_torch_what_it_computes_in(
    monkeypatch: pytest.MonkeyPatch,
    device: torch.device,
    fields: dict[str, str],
    is_native: bool,
    features: bytes,
    chosen: str,
) -> None:
    monkeypatch.setattr(build, "_cpu", lambda: features)
    assert planned_kv_format(spec(**fields), device, is_native=is_native) == chosen
    assert set(get_args(KVDtype)) == {"auto", *get_args(KVFormat)}


NOT_NATIVE = "kv_dtype {} is not built for the native decoder .* fp32, bf16, int8"
NO_FP8 = (
    r"kv_dtype fp8 needs a card of compute capability 8\.9 or more, and this one has 8\.6; set it "
    "to int8"
)


@each_case(
    ("device", "kv_dtype", "capability", "refusal"),
    [
        *((CPU, kv_dtype, None, None) for kv_dtype in ("fp32", "bf16", "int8")),
        *((CPU, kv_dtype, None, NOT_NATIVE.format(kv_dtype)) for kv_dtype in ("fp8", "fp16")),
        *((CUDA, kv_dtype, (8, 6), None) for kv_dtype in set(get_args(KVFormat)) - {"fp8"}),
        (CUDA, "fp8", (8, 6), NO_FP8),
        (CUDA, "fp8", (8, 9), None),
        (CUDA, "fp8", (9, 0), None),
    ],
)
def test_a_format_is_had_or_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
    device: torch.device,
    kv_dtype: KVDtype,
    capability: tuple[int, int] | None,
    refusal: str | None,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    with nullcontext() if refusal is None else pytest.raises(BadSourceError, match=refusal):
        assert planned_kv_format(spec(kv_dtype), device, is_native=device is CPU) == kv_dtype


def test_it_is_refused_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if build.find_compiler() is None:
        pytest.skip("no C++ compiler")
    monkeypatch.setattr(loader, "fetch_files", None)  # a fetch would fail
    wanted = LoadSpec(job_id="1", model="m", source="pypi:m", devices=["cpu"], kv_dtype="fp8")
    with pytest.raises(BadSourceError, match="kv_dtype fp8"):
        open_model(wanted, tmp_path, lambda _: None)
