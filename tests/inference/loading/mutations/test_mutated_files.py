"""Files with mutated headers and configs are refused in words, or answer a token.

None crashes, hangs, ends in a raw error, or takes more memory than a small file may.
HELEXA_MUTATED_FILES is how many cases the slow test runs of each model.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import pytest

from inference.loading.gguf.header import read_headers
from inference.models.native.library import find_compiler
from inference.protocol.load_errors import BadFileError
from tests.inference.loading.mutations.child import UNCHANGED
from tests.inference.loading.mutations.mutations import mutate
from tests.inference.loading.mutations.subjects import SLOW, SUBJECTS

REPOSITORY = Path(__file__).resolve().parents[4]
CASES_OF_A_CHILD = 150
MANY = int(os.environ.get("HELEXA_MUTATED_FILES", "").strip() or 0)
MOST_HEADER_BYTES = 4 * 2**20
"""The files have headers of some kilobytes."""

pytestmark = [
    pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler"),
    pytest.mark.limit_s(36_000),
]


def check(subjects: Iterable[str], num_cases: int, folder: Path, native_cache_dir: Path) -> None:
    """The files as they are, and so many cases of each subject."""
    sources = {}
    for subject in subjects:
        (folder / subject).mkdir()
        sources[subject] = (SUBJECTS[subject].kind, str(SUBJECTS[subject].save(folder / subject)))
    for first in range(UNCHANGED, num_cases, CASES_OF_A_CHILD):
        last = min(first + CASES_OF_A_CHILD, num_cases)
        child = subprocess.run(
            [
                *(sys.executable, "-m", f"{__package__}.child", json.dumps(sources)),
                *(str(first), str(last), str(native_cache_dir)),
            ],
            capture_output=True,
            check=False,
            cwd=REPOSITORY,
            env=os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
            text=True,
        )
        cases = [json.loads(line) for line in child.stdout.splitlines()]
        assert child.returncode == 0, (cases[-1:], child.stderr[-2000:])
        ends = [case for case in cases if "found" in case]
        wrong = [case for case in ends if case["is_wrong"]]
        assert not wrong, "\n".join(json.dumps(case, indent=1) for case in wrong)
        unanswered = [c for c in ends if c["case"] == UNCHANGED and c["found"] != "answered"]
        assert not unanswered and len(ends) == len(sources) * (last - first)


def test_mutated_headers_are_read_or_refused(tmp_path: Path) -> None:
    """A refusal has a sentence and takes no more memory than the header."""
    source = SUBJECTS["packed llama.gguf"].save(tmp_path)
    num_refused, num_cases = 0, 250 * MANY or 50
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
def test_many_mutated_files(tmp_path: Path, native_cache_dir: Path) -> None:
    check(sorted(SUBJECTS.keys() - SLOW), MANY or 400, tmp_path, native_cache_dir)


@pytest.mark.slow
def test_mutated_files_of_transformers_modules(tmp_path: Path, native_cache_dir: Path) -> None:
    check(sorted(SLOW), max(1, (MANY or 400) // 10), tmp_path, native_cache_dir)
