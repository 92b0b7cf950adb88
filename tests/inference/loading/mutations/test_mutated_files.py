"""Files with mutated headers and configs are refused in words, or answer a token.

None crashes, hangs, ends in a raw error, or takes more memory than a small file may. As a program,
which may die of them, it loads cases of the subjects that its arguments name: it writes a JSON line
before each and one when it has ended. HELEXA_MUTATED_FILES is how many cases the slow test runs of
each model.
"""

from __future__ import annotations

import faulthandler
import functools
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import traceback
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest
import torch

from inference.garbage import release_freed_memory
from inference.loading.adapter_files import open_adapter
from inference.loading.embedding_loader import OpenedEmbeddingModel
from inference.loading.gguf.header import read_headers
from inference.loading.loader import open_model
from inference.models import registry
from inference.models.embedding import EmbeddingModel
from inference.models.errors import ModelError, UnfitWeightsError
from inference.models.native.library import find_compiler
from inference.models.registry import build_fastest_model
from inference.models.step_input import NUM_LONE_STATES, StepInput
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import BadFileError, LoadError
from tests.inference.adapter_files import spec_of
from tests.inference.loading.mutations.mutations import mutate
from tests.inference.loading.mutations.subjects import SLOW, SUBJECTS

REPOSITORY = Path(__file__).resolve().parents[4]
CASES_OF_A_CHILD = 150
MANY = int(os.environ.get("HELEXA_MUTATED_FILES", "").strip() or 0)
MOST_HEADER_BYTES = 4 * 2**20
"""The files have headers of some kilobytes."""
HANG_S = 180.0
"""The usual case takes some milliseconds."""
ADDRESS_SPACE_BYTES = 8 * 1024**3
"""The address space that the child may take beside what is mapped when the first case begins: what
asks for a terabyte gets none, whatever this machine would promise."""
MOST_CASE_BYTES = 400 * 1024**2
"""What a case of a small file may leave in memory at its highest."""
UNCHANGED = -1
"""The case of the files as they are, which must answer."""
CONTEXT_TOKENS, BLOCK_TOKENS = 256, 32
PROMPT = [1, 2, 3]

pytestmark = [
    pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler"),
    pytest.mark.limit_s(36_000),
]


def check(subjects: Iterable[str], num_cases: int, folder: Path, native_cache_dir: Path) -> None:
    """The files as they are, and so many cases of each subject."""
    sources = {}
    for subject in subjects:
        (folder / subject).mkdir()
        sources[subject] = str(SUBJECTS[subject](folder / subject))
    for first in range(UNCHANGED, num_cases, CASES_OF_A_CHILD):
        last = min(first + CASES_OF_A_CHILD, num_cases)
        child = subprocess.run(
            [
                *(sys.executable, "-m", __name__, json.dumps(sources)),
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
    source = SUBJECTS["packed llama.gguf"](tmp_path)
    num_refused, num_cases = 0, 250 * MANY or 50
    tracemalloc.start()
    for case in range(num_cases):
        path = mutate(source, tmp_path / "mutated", random.Random(case))
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
    check(sorted(SLOW), max(1, (MANY or 400) // 10), tmp_path, native_cache_dir)


def main() -> None:
    sources, first, last = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    native_cache_dir = Path(sys.argv[4])
    torch.set_num_threads(1)
    # A library's name is a digest of its sources: looking it up reads all of them.
    registry.load_library = functools.cache(registry.load_library)
    mapped_bytes = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (mapped_bytes + ADDRESS_SPACE_BYTES,) * 2)
    for subject, path in sources.items():
        with tempfile.TemporaryDirectory() as scratch:
            folder, source = Path(scratch), Path(path)
            for number in range(first, last):
                case = {"subject": subject, "case": number}
                print(json.dumps(case), flush=True)
                faulthandler.dump_traceback_later(HANG_S, exit=True)
                changed, rng = source, random.Random(f"{subject} {number}")
                if number != UNCHANGED:
                    changed = mutate(source, folder / "mutated", rng)
                found = outcome(changed, source.parent / "base", folder, native_cache_dir)
                print(json.dumps(case | found), flush=True)
                shutil.rmtree(folder / "tokenizers", ignore_errors=True)
    faulthandler.cancel_dump_traceback_later()


def outcome(source: Path, base: Path, folder: Path, native_cache_dir: Path) -> dict[str, object]:
    before_bytes = psutil.Process().memory_info().rss
    found: dict[str, object] = {"found": "answered", "is_wrong": False}
    try:
        _answer(source, base, folder, native_cache_dir)
    except (LoadError, ModelError) as error:
        # Weights that do not fit show a gap in the checks before.
        is_wrong = not str(error) or isinstance(error, UnfitWeightsError)
        found = {"found": type(error).__name__, "is_wrong": is_wrong, "words": str(error)[:300]}
    except BaseException as error:  # noqa: BLE001 -- a Rust panic is none of Exception's
        trace = traceback.format_exc().strip().splitlines()[-12:]
        found = {"found": type(error).__name__, "is_wrong": True, "trace": "\n".join(trace)}
    grown_bytes = psutil.Process().memory_info().rss - before_bytes
    if grown_bytes > MOST_CASE_BYTES:
        found |= {"is_wrong": True, "grown_bytes": grown_bytes}
    release_freed_memory()
    return found


@torch.inference_mode()
def _answer(source: Path, base: Path, folder: Path, native_cache_dir: Path) -> None:
    """``base``: the model of an adapter, whose files ``source`` then are."""
    model = base if base.is_dir() else source
    spec = LoadSpec(job_id="1", model="m", source=f"path:{model}", devices=["cpu"])
    opened = open_model(spec, folder, lambda _: None)
    if isinstance(opened, OpenedEmbeddingModel):
        encoder = EmbeddingModel(opened.directory, opened.config, opened.device, opened.dtype)
        encoder.embed([torch.tensor(PROMPT)])
        return
    try:
        config = opened.config
        context_tokens = min(config.max_positions, CONTEXT_TOKENS)
        decoder, _ = build_fastest_model(config, opened.weights, context_tokens, native_cache_dir)
        if model is base:
            found = open_adapter(spec_of(source, "a"), config, folder, lambda _: None)
            decoder.prepare_adapter(found.weights)
        prompt = [token % config.vocab_size for token in PROMPT[:context_tokens]]
        kv = decoder.new_kv(1, BLOCK_TOKENS, NUM_LONE_STATES)
        logits = decoder.forward(StepInput.of_sequence(prompt, BLOCK_TOKENS), kv)
        assert logits.shape[-1] == config.vocab_size
    finally:
        opened.close()


if __name__ == "__main__":
    main()
