"""Kernels that the interpreter runs may still not compile. They are compiled here to machine code,
in a process of its own, since this one interprets them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
STRIDE = os.environ.get("HELEXA_KERNEL_STRIDE", "61")
"""One case in so many is compiled, others for each architecture. A prime number, so that every
value of each axis is among them. 1 compiles all: some two hours of a core."""


def run_program(*arguments: str, cache: Path) -> list[str]:
    """What it prints, line by line. Triton keeps what it compiled, by its source, for later
    runs."""
    own = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache.parent / "triton")}
    module = "tests.inference.models.cuda.compilation.compile_kernels"
    finished = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=os.environ | own,
        cwd=Path(__file__).parents[5],
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.limit_s(120)
def test_no_step_compiles_a_kernel_again(model_cache_dir: Path) -> None:
    assert run_program("again", cache=model_cache_dir) == []


@pytest.mark.slow
@pytest.mark.limit_s(3600)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_compile_for_what_models_ask(architecture: int, model_cache_dir: Path) -> None:
    assert len(run_program(str(architecture), STRIDE, cache=model_cache_dir)) > 1
