"""Which KV format a spec means, and which are refused before anything is fetched; and what a host
has: as much as its control group leaves, and what Triton needs."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any, get_args

import psutil
import pytest
import torch

from inference.loading import loader
from inference.loading.devices import planned_kv_format
from inference.loading.host import host_memory, triton_problem
from inference.loading.loader import open_model
from inference.models.kv_format import KVFormat
from inference.models.native import library
from inference.protocol.load import KVDtype, LoadSpec
from inference.protocol.load_errors import BadSourceError
from tests.cases import each_case

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")


def spec(kv_dtype: KVDtype = "auto", **fields: Any) -> LoadSpec:
    return LoadSpec(job_id="1", model="m", source="path:/nowhere", kv_dtype=kv_dtype, **fields)  # type: ignore[arg-type]


def test_automatic_is_bytes_where_the_cpu_multiplies_them_and_on_torch_what_it_computes_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for device, fields, is_native, features, chosen in (
        (CPU, {}, True, b"flags : avx2 avx512_vnni", "int8"),
        (CPU, {}, True, b"flags : avx2", "bf16"),
        (CPU, {}, False, b"", "fp32"),
        (CUDA, {"dtype": "float16"}, False, b"", "fp16"),
    ):
        monkeypatch.setattr(library, "_cpu", lambda features=features: features)
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
    monkeypatch.setattr(loader, "fetch_files", None)  # a fetch would fail
    with nullcontext() if refusal is None else pytest.raises(BadSourceError, match=refusal):
        assert planned_kv_format(spec(kv_dtype), device, is_native=device is CPU) == kv_dtype
    if refusal is not None and device is CPU and library.find_compiler() is not None:
        with pytest.raises(BadSourceError, match=f"kv_dtype {kv_dtype}"):
            open_model(spec(kv_dtype, devices=["cpu"]), Path("/nowhere"), lambda _: None)


MIB = 2**20


@each_case(
    ("limit", "used", "expected"),
    [
        (100 * MIB, 30 * MIB, (100 * MIB, 70 * MIB)),
        (100 * MIB, 101 * MIB, (100 * MIB, 0)),
        ("max", 5, None),
        (2**60, 0, None),
        (None, None, None),
    ],
)
def test_a_control_group_confines(
    tmp_path: Path, limit: object, used: object, expected: tuple[int, int] | None
) -> None:
    """Without a limit, or with one over what the host has, it is the whole host."""
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text(f"{used}\n")
    found, host_bytes = host_memory(tmp_path), psutil.virtual_memory().total
    if expected is None:
        assert found.total_bytes == host_bytes and 0 < found.free_bytes <= host_bytes
    else:
        assert (found.total_bytes, found.free_bytes) == expected


@each_case(
    ("programs", "named", "has_headers", "problem"),
    [
        (["gcc"], None, True, None),
        (["clang"], None, True, None),
        (["gcc", "zig-cc"], "zig-cc", True, None),
        (["gcc", "zig-cc"], "{}/zig-cc", True, None),
        (["gcc"], "absent", True, "a C compiler"),
        (["g++"], None, True, "a C compiler"),
        (["gcc"], None, False, "headers of Python 3"),
    ],
)
def test_triton_needs_a_c_compiler_and_headers(
    tmp_path: Path, programs: list[str], named: str | None, has_headers: bool, problem: str | None
) -> None:
    """What CC names is the compiler, and no other."""
    for name in programs:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    if has_headers:
        (tmp_path / "Python.h").touch()
    environment = {"PATH": str(tmp_path)} | ({"CC": named.format(tmp_path)} if named else {})
    found = triton_problem(environment, tmp_path)
    if problem is None:
        assert found is None
    else:
        assert found is not None and problem in found and "install gcc and python3-dev" in found
        assert ("C compiler" in found) is not ("headers of" in found)
