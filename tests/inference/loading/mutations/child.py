"""Loads mutated files in a process that may die of them.

Writes one JSON line before each case and one when it has ended. Its arguments are those that
``test_mutated_files.check`` gives.
"""

from __future__ import annotations

import faulthandler
import functools
import json
import random
import resource
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

import psutil
import torch

from inference.garbage import release_freed_memory
from inference.loading.adapter_files import open_adapter
from inference.loading.embedding.embedding_loader import OpenedEmbeddingModel
from inference.loading.loader import OpenedModel, open_model
from inference.models import registry
from inference.models.embedding import EmbeddingModel
from inference.models.errors import ModelError, UnfitWeightsError
from inference.models.registry import build_fastest_model
from inference.models.step_input import NUM_LONE_STATES, StepInput
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import LoadError
from tests.inference.adapter_files import spec_of
from tests.inference.loading.mutations.mutations import mutate

HANG_S = 180.0
"""The usual case takes some milliseconds."""
ADDRESS_SPACE_BYTES = 8 * 1024**3
"""The address space that the child may take beside the memory that is mapped when the first case
begins: what asks for a terabyte gets none, whatever this machine would promise."""
MOST_CASE_BYTES = 400 * 1024**2
"""What a case of a small file may leave in memory at its highest."""
UNCHANGED = -1
"""The case of the files as they are, which must answer."""
CONTEXT_TOKENS, BLOCK_TOKENS = 256, 32
PROMPT = [1, 2, 3]


def main() -> None:
    sources, first, last = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    native_cache_dir = Path(sys.argv[4])
    torch.set_num_threads(1)
    # A library's name is a digest of its sources: looking it up reads all of them.
    registry.load_library = functools.cache(registry.load_library)
    mapped_bytes = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (mapped_bytes + ADDRESS_SPACE_BYTES,) * 2)
    for subject, (kind, source) in sources.items():
        with tempfile.TemporaryDirectory() as folder:
            for number in range(first, last):
                case = {"subject": subject, "case": number}
                print(json.dumps(case), flush=True)
                faulthandler.dump_traceback_later(HANG_S, exit=True)
                found = outcome(kind, Path(source), Path(folder), case, native_cache_dir)
                print(json.dumps(case | found), flush=True)
                shutil.rmtree(Path(folder) / "tokenizers", ignore_errors=True)
    faulthandler.cancel_dump_traceback_later()


def outcome(
    kind: str, source: Path, folder: Path, case: dict[str, object], native_cache_dir: Path
) -> dict[str, object]:
    base = source.parent / "base"
    if case["case"] != UNCHANGED:
        rng = random.Random(f"{case['subject']} {case['case']}")
        source = mutate(kind, source, folder / "mutated", rng)
    before_bytes = psutil.Process().memory_info().rss
    try:
        if kind == "adapter":
            _adapt(base, source, folder, native_cache_dir)
        else:
            _answer(source, folder, native_cache_dir)
        found: dict[str, object] = {"found": "answered", "is_wrong": False}
    except UnfitWeightsError as error:
        found = _raw("a gap in the checks before", error)
    except (LoadError, ModelError) as error:
        found = {"found": type(error).__name__, "is_wrong": not str(error)}
    except BaseException as error:  # noqa: BLE001 -- a Rust panic is none of Exception's
        found = _raw(type(error).__name__, error)
    grown_bytes = psutil.Process().memory_info().rss - before_bytes
    if grown_bytes > MOST_CASE_BYTES:
        found |= {"is_wrong": True, "grown_bytes": grown_bytes}
    release_freed_memory()
    return found


def _raw(found: str, error: BaseException) -> dict[str, object]:
    last = traceback.format_exc().strip().splitlines()[-12:]
    return {"found": found, "words": f"{error}"[:300], "is_wrong": True, "trace": "\n".join(last)}


@torch.inference_mode()
def _answer(source: Path, folder: Path, native_cache_dir: Path) -> None:
    opened = open_model(_spec(source), folder, lambda _: None)
    if isinstance(opened, OpenedEmbeddingModel):
        model = EmbeddingModel(opened.directory, opened.config, opened.device, opened.dtype)
        model.embed([torch.tensor(PROMPT)])
        return
    try:
        config = opened.config
        context_tokens = min(config.max_positions, CONTEXT_TOKENS)
        decoder, _ = build_fastest_model(config, opened.weights, context_tokens, native_cache_dir)
        prompt = [token % config.vocab_size for token in PROMPT[:context_tokens]]
        kv = decoder.new_kv(1, BLOCK_TOKENS, NUM_LONE_STATES)
        logits = decoder.forward(StepInput.of_sequence(prompt, BLOCK_TOKENS), kv)
        assert logits.shape[-1] == config.vocab_size
    finally:
        opened.close()


@torch.inference_mode()
def _adapt(base: Path, source: Path, folder: Path, native_cache_dir: Path) -> None:
    opened = open_model(_spec(base), folder, lambda _: None)
    assert isinstance(opened, OpenedModel)
    found = open_adapter(spec_of(source, "a"), opened.config, folder, lambda _: None)
    model, _ = build_fastest_model(opened.config, opened.weights, CONTEXT_TOKENS, native_cache_dir)
    model.prepare_adapter(found.weights)


def _spec(source: Path) -> LoadSpec:
    return LoadSpec(job_id="1", model="m", source=f"path:{source}", devices=["cpu"])


if __name__ == "__main__":
    main()
