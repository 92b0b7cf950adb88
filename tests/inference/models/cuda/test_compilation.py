"""Kernels that the interpreter runs may still not compile. They are compiled here to machine code,
in a process of its own, since this one interprets them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LARGEST_SHARED_BYTES = 99 * 1024
"""What a block may have on any card since compute capability 8.0."""
MOST_PER_WEIGHT = 8.5
"""Instructions of a lane: 6 to 8 as written. Were layouts converted on the way, or scales and codes
read one by one, it would be 15 to 40, and memory would wait for them."""


@pytest.mark.slow
def test_kernels_compile_for_cards_that_are_not_here(model_cache_dir: Path) -> None:
    """Triton keeps what it compiled, by its source, for later runs."""
    cache = {"TRITON_CACHE_DIR": str(model_cache_dir.parent / "triton")}
    environment = os.environ | {"TRITON_INTERPRET": "0"} | cache
    command = [sys.executable, "-m", "tests.inference.models.cuda.compile_kernels"]
    finished = subprocess.run(
        command,
        env=environment,
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    lines = [line.split() for line in finished.stdout.splitlines()]
    assert len(lines) == 23
    for _, _, code_bytes, shared_bytes, *per_weight in lines:
        assert int(code_bytes) > 1000
        assert int(shared_bytes) <= LARGEST_SHARED_BYTES
        assert all(float(instructions) <= MOST_PER_WEIGHT for instructions in per_weight)
