"""Kernels that the interpreter runs may still not compile. They are compiled here to machine code,
in a process of its own, since this one interprets them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.inference.models.cuda.compilation.attention_cases import ARCHITECTURES
from tests.inference.models.cuda.compilation.compile_cases import MATRICES, cases

STRIDE = int(os.environ.get("HELEXA_KERNEL_STRIDE", "131"))
"""One combination in so many is compiled, others for each architecture. A prime number, so that
every value of each axis is among them or the diagonal. 1 compiles all 2,504: some two hours of a
core."""
STRIDES = {"attention": STRIDE, "experts": min(STRIDE, 23), "batches": min(STRIDE, 23)}


def run_program(module: str, *arguments: str, cache: Path) -> list[str]:
    """What it prints, line by line. Triton keeps what it compiled, by its source, for later
    runs."""
    own = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache.parent / "triton")}
    finished = subprocess.run(
        [sys.executable, "-m", f"tests.inference.models.cuda.compilation.{module}", *arguments],
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
    """Slices of a step's upload begin anywhere, and Triton would compile another kernel for those
    that begin at a multiple of 16 bytes."""
    assert run_program("specialisations", cache=model_cache_dir) == []


@pytest.mark.slow
@pytest.mark.limit_s(300)
@pytest.mark.parametrize(
    ("arguments", "num_cases"),
    [
        (("others",), 39),
        (("attention", "diagonal"), 16),
        (("experts", "diagonal"), 5),
        (("batches", "diagonal"), 4),
    ],
)
def test_kernels_compile_for_cards_that_are_not_here(
    arguments: tuple[str, ...], num_cases: int, model_cache_dir: Path
) -> None:
    assert len(run_program("compile_cases", *arguments, cache=model_cache_dir)) == num_cases


@pytest.mark.slow
@pytest.mark.limit_s(3600)
@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_compile_for_what_models_ask(
    architecture: int, matrix: str, model_cache_dir: Path
) -> None:
    """Norms or none, every width of heads and format of keys and values, with a window, sinks or a
    cap of scores and without; every format of weights. A combination that does not compile for a
    card, or does not fit it, would take torch's operators there."""
    if architecture not in MATRICES[matrix].ARCHITECTURES:
        pytest.skip("no kernel is built for it")
    arguments = matrix, str(architecture), str(STRIDES[matrix])
    lines = run_program("compile_cases", *arguments, cache=model_cache_dir)
    assert len(lines) == len(list(cases(*arguments))) > 1
