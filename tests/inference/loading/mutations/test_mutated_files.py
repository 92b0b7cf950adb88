"""Files with mutated headers and configs are refused in words, or answer a token.

None crashes, hangs, ends in a raw error, or takes more memory than a small file may.
HELEXA_MUTATED_FILES is how many cases the slow test runs of each model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from inference.models.native import build
from tests.inference.loading.mutations.campaign import run_cases
from tests.inference.loading.mutations.child import UNCHANGED
from tests.inference.loading.mutations.subjects import SLOW, SUBJECTS

FEW = 40
MANY = int(os.environ.get("HELEXA_MUTATED_FILES", "").strip() or 400)
QUICK = sorted(SUBJECTS.keys() - SLOW)
EACH_TIME = (
    *("packed llama.gguf", "qwen3moe.gguf", "qwen3next.gguf", "granite4.gguf"),
    *("llama", "qwen3_5", "awq", "compressed", "mxfp4", "adapter"),
)
"""Every format and kind of layer once."""

pytestmark = pytest.mark.skipif(build.find_compiler() is None, reason="no C++ compiler")


def check(subjects: Iterable[str], num_cases: int, folder: Path, native_cache_dir: Path) -> None:
    """The files as they are, and so many cases of each subject."""
    ranges = {subject: range(UNCHANGED, num_cases) for subject in subjects}
    for subject, found in run_cases(ranges, folder, native_cache_dir).items():
        assert not found.wrong, "\n".join(json.dumps(case, indent=1) for case in found.wrong)
        assert found.num_cases == num_cases + 1
        assert found.counts["answered"] >= 1, f"{subject}: the files as they are"


def test_some_mutated_files(tmp_path: Path, native_cache_dir: Path) -> None:
    check(EACH_TIME, FEW, tmp_path, native_cache_dir)


@pytest.mark.slow
@pytest.mark.limit_s(36_000)
def test_many_mutated_files(tmp_path: Path, native_cache_dir: Path) -> None:
    check(QUICK, MANY, tmp_path, native_cache_dir)


@pytest.mark.slow
@pytest.mark.limit_s(36_000)
def test_mutated_files_of_transformers_modules(tmp_path: Path, native_cache_dir: Path) -> None:
    check(sorted(SLOW), max(1, MANY // 10), tmp_path, native_cache_dir)
