"""What a host has is what its control group leaves of it."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from inference.loading.host import HostMemory, host_memory, triton_problem

MIB = 2**20


def _group(directory: Path, limit: str, used: int) -> Path:
    (directory / "memory.max").write_text(f"{limit}\n")
    (directory / "memory.current").write_text(f"{used}\n")
    return directory


def test_a_control_group_confines(tmp_path: Path) -> None:
    group = _group(tmp_path, str(100 * MIB), 30 * MIB)
    assert host_memory(group) == HostMemory(100 * MIB, 70 * MIB)


def test_a_group_over_its_limit_has_nothing_free(tmp_path: Path) -> None:
    assert host_memory(_group(tmp_path, str(100 * MIB), 101 * MIB)).free_bytes == 0


def test_without_a_limit_it_is_the_whole_host(tmp_path: Path) -> None:
    total_bytes = psutil.virtual_memory().total
    for group in (tmp_path, _group(tmp_path, "max", 5)):
        found = host_memory(group)
        assert found.total_bytes == total_bytes
        assert 0 < found.free_bytes <= total_bytes


def test_a_limit_over_what_the_host_has_changes_nothing(tmp_path: Path) -> None:
    total_bytes = psutil.virtual_memory().total
    assert host_memory(_group(tmp_path, str(2**60), 0)).total_bytes == total_bytes


def program(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def headers(tmp_path: Path) -> Path:
    folder = tmp_path / "include"
    folder.mkdir()
    (folder / "Python.h").touch()
    return folder


@pytest.mark.parametrize("name", ["gcc", "clang"])
def test_a_compiler_and_headers_are_enough(name: str, tmp_path: Path, headers: Path) -> None:
    program(tmp_path, name)
    assert triton_problem({"PATH": str(tmp_path)}, headers) is None


def test_what_cc_names_is_the_compiler_and_no_other(tmp_path: Path, headers: Path) -> None:
    program(tmp_path, "gcc")
    own = program(tmp_path, "zig-cc")
    for named in ("zig-cc", str(own)):
        assert triton_problem({"PATH": str(tmp_path), "CC": named}, headers) is None
    problem = triton_problem({"PATH": str(tmp_path), "CC": "absent"}, headers)
    assert problem is not None and "C compiler" in problem


def test_a_cpp_compiler_alone_is_not_enough(tmp_path: Path, headers: Path) -> None:
    program(tmp_path, "g++")
    problem = triton_problem({"PATH": str(tmp_path)}, headers)
    assert problem is not None
    assert "a C compiler" in problem and "headers" not in problem
    assert "install gcc and python3-dev" in problem


def test_a_python_without_headers(tmp_path: Path) -> None:
    program(tmp_path, "gcc")
    problem = triton_problem({"PATH": str(tmp_path)}, tmp_path)
    assert problem is not None
    assert "headers of Python 3" in problem and "C compiler" not in problem
