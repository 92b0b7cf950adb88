"""Tests what Triton needs: without a C compiler or Python's headers a host runs models on CUDA more
slowly, and the load report gives the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.loading.triton_needs import triton_problem


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
