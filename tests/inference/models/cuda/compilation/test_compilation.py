"""Kernels that the interpreter runs may still not compile. They are compiled here to machine code,
in a process of its own, since this one interprets them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.inference.models.cuda.compilation import batch_matrix, expert_matrix, kernel_matrix
from tests.inference.models.cuda.compilation.few_cases import few_cases

LARGEST_SHARED_BYTES = 99 * 1024
"""What a block may have on any card since compute capability 8.0."""
MOST_PER_WEIGHT = 8.5
"""Instructions of a lane: 6 to 8 as written. Were layouts converted on the way, or scales and codes
read one by one, it would be 15 to 40, and memory would wait for them."""
MOST_PER_WEIGHT_OF_75 = 17
"""Its products are smaller, and nothing is fetched ahead of them."""

STRIDE = int(os.environ.get("HELEXA_KERNEL_STRIDE", "131"))
"""One combination in so many is compiled, others for each architecture. A prime number, so that
every value of each axis is among them or the diagonal. 1 compiles all 2,504: some two hours of a
core."""
EXPERT_STRIDE = min(STRIDE, 23)


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
def test_kernels_compile_for_cards_that_are_not_here(model_cache_dir: Path) -> None:
    lines = [line.split() for line in run_program("compile_kernels", cache=model_cache_dir)]
    assert len(lines) == 16 + 3 * len(kernel_matrix.ARCHITECTURES) + 2
    for _, architecture, code_bytes, shared_bytes, *per_weight in lines:
        most = MOST_PER_WEIGHT_OF_75 if architecture == "75" else MOST_PER_WEIGHT
        assert int(code_bytes) > 1000
        assert int(shared_bytes) <= LARGEST_SHARED_BYTES
        assert all(float(instructions) <= most for instructions in per_weight)


@pytest.mark.slow
@pytest.mark.limit_s(120)
def test_no_step_compiles_a_kernel_again(model_cache_dir: Path) -> None:
    """Slices of a step's upload begin anywhere, and Triton would compile another kernel for those
    that begin at a multiple of 16 bytes."""
    assert run_program("specialisations", cache=model_cache_dir) == []


@pytest.mark.slow
@pytest.mark.limit_s(300)
def test_every_kernel_compiles(model_cache_dir: Path) -> None:
    assert len(run_program("few_cases", cache=model_cache_dir)) == len(few_cases()) == 8


@pytest.mark.slow
@pytest.mark.limit_s(300)
@pytest.mark.parametrize(
    ("matrix", "num_cases"), [("kernel_matrix", 16), ("expert_matrix", 5), ("batch_matrix", 4)]
)
def test_kernels_compile_for_some_combinations(
    matrix: str, num_cases: int, model_cache_dir: Path
) -> None:
    assert len(run_program(matrix, "diagonal", cache=model_cache_dir)) == num_cases


@pytest.mark.slow
@pytest.mark.limit_s(3600)
@pytest.mark.parametrize("architecture", kernel_matrix.ARCHITECTURES)
def test_attention_and_rotation_compile_for_what_families_ask(
    architecture: int, model_cache_dir: Path
) -> None:
    """Norms or none, every width of heads and format of keys and values, with a window, sinks or a
    cap of scores and without: a combination that does not compile for a card, or does not fit it,
    would take torch's operators there."""
    cases = list(kernel_matrix.some_cases(architecture, STRIDE))
    lines = run_program("kernel_matrix", str(architecture), str(STRIDE), cache=model_cache_dir)
    assert len(lines) == len(cases) > 5


@pytest.mark.slow
@pytest.mark.limit_s(3600)
@pytest.mark.parametrize("architecture", expert_matrix.ARCHITECTURES)
def test_experts_compile_in_every_format(architecture: int, model_cache_dir: Path) -> None:
    cases = list(expert_matrix.some_cases(architecture, EXPERT_STRIDE))
    lines = run_program(
        "expert_matrix", str(architecture), str(EXPERT_STRIDE), cache=model_cache_dir
    )
    assert len(lines) == len(cases) > 1


@pytest.mark.slow
@pytest.mark.limit_s(3600)
@pytest.mark.parametrize("architecture", batch_matrix.ARCHITECTURES)
def test_products_of_batches_compile_in_every_format(
    architecture: int, model_cache_dir: Path
) -> None:
    cases = list(batch_matrix.some_cases(architecture, EXPERT_STRIDE))
    lines = run_program(
        "batch_matrix", str(architecture), str(EXPERT_STRIDE), cache=model_cache_dir
    )
    assert len(lines) == len(cases) > 1
