"""What a host has is what its control group leaves of it."""

from __future__ import annotations

from pathlib import Path

import psutil

from inference.loading.host import host_memory, triton_problem
from tests.cases import each_case

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
