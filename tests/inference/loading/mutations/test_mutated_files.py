"""Files with mutated headers and configs are refused in words, or answer a token.

None crashes, hangs, ends in a raw error, or takes more memory than a small file may.
HELEXA_MUTATED_FILES is how many cases the slow test runs of each model.
"""

from __future__ import annotations

import json
import os
import random
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import pytest

from inference.loading.gguf.header import read_headers
from inference.models.native import build
from inference.protocol.load_errors import BadFileError
from tests.inference.loading.mutations.campaign import run_cases
from tests.inference.loading.mutations.child import UNCHANGED
from tests.inference.loading.mutations.mutations import mutate
from tests.inference.loading.mutations.subjects import SLOW, SUBJECTS

FEW = 15
HAS_MANY = bool(os.environ.get("HELEXA_MUTATED_FILES", "").strip())
FEW_HEADERS, HEADERS_OF_EACH = 50, 250
MOST_HEADER_BYTES = 4 * 2**20
"""The files have headers of some kilobytes."""
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


@pytest.mark.slow
def test_some_mutated_files(tmp_path: Path, native_cache_dir: Path) -> None:
    check(EACH_TIME, FEW, tmp_path, native_cache_dir)


@pytest.mark.limit_s(36_000)
def test_mutated_headers_are_read_or_refused(tmp_path: Path) -> None:
    """A refusal has a sentence and takes no more memory than the header. There are 10**5 cases
    where ``MANY`` is 400."""
    source = SUBJECTS["packed llama.gguf"].save(tmp_path)
    num_refused, num_cases = 0, HEADERS_OF_EACH * MANY if HAS_MANY else FEW_HEADERS
    tracemalloc.start()
    for case in range(num_cases):
        path = mutate("gguf", source, tmp_path / "mutated", random.Random(case))
        tracemalloc.reset_peak()
        before_bytes = tracemalloc.get_traced_memory()[0]
        try:
            read_headers([path])
        except BadFileError as error:
            num_refused += 1
            assert "model.gguf" in str(error), case
        taken_bytes = tracemalloc.get_traced_memory()[1] - before_bytes
        assert taken_bytes < MOST_HEADER_BYTES, case
    tracemalloc.stop()
    assert num_cases / 5 < num_refused < num_cases


@pytest.mark.slow
@pytest.mark.limit_s(36_000)
def test_many_mutated_files(tmp_path: Path, native_cache_dir: Path) -> None:
    check(QUICK, MANY, tmp_path, native_cache_dir)


@pytest.mark.slow
@pytest.mark.limit_s(36_000)
def test_mutated_files_of_transformers_modules(tmp_path: Path, native_cache_dir: Path) -> None:
    check(sorted(SLOW), max(1, MANY // 10), tmp_path, native_cache_dir)
